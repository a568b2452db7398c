"""What can be erased is committed to: the database refuses an event whose content, or the lack of it, nothing would prove."""

from dataclasses import fields, replace
from typing import Any, get_args

import pytest
from psycopg.errors import CheckViolation
from sqlalchemy import Connection, text
from sqlalchemy.exc import IntegrityError

from service.domain.events import Event
from service.store.codec import METADATA, encode
from tests.store.golden_events import GOLDEN

INSERT = text("""
    INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment, chain)
    VALUES ('acme', 'conv_1', 1, :type, 1, now(), '{}', :commitment, decode(repeat('00', 32), 'hex'))
""")
KINDS = get_args(Event)


def with_least_content(name: str) -> Event:
    """A client's metadata may be empty, and nothing is kept of them then."""
    event: Any = GOLDEN[name]
    has = any(field.name == METADATA for field in fields(event))
    emptied: Event = replace(event, **({METADATA: {}} if has else {}))
    return emptied


def always_has_content(name: str) -> bool:
    row = encode(with_least_content(name))
    return row.content is not None or row.tokens is not None


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_an_event_without_a_commitment_is_refused_where_its_kind_has_content(
    conn: Connection, name: str
) -> None:
    if not always_has_content(name):
        conn.execute(INSERT, {"type": name, "commitment": None})
        return
    with pytest.raises(IntegrityError, match="ck_events_committed") as caught:
        conn.execute(INSERT, {"type": name, "commitment": None})
    assert isinstance(caught.value.orig, CheckViolation)


@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_no_kind_of_event_is_refused_with_a_commitment(conn: Connection, name: str) -> None:
    conn.execute(INSERT, {"type": name, "commitment": b"\0" * 32})
