"""A broker's own client, for what no worker would do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Connection


@contextmanager
def client_of(url: str) -> Iterator[Any]:
    with Connection(url) as connection:
        channel: Any = connection.default_channel
        yield channel.client
