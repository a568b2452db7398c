"""Where a KV store lies, as a person says it."""

from pathlib import Path

from service.domain.errors import InvalidInput
from workers.kv_connector.local_store import LocalStore
from workers.kv_connector.store import BlockStore

HELP = "folder of the KV store"


def full_address(given: str | Path) -> str:
    """As it can be handed to another process: a folder is made absolute. Raises: InvalidInput."""
    text = str(given)
    if not text or "://" in text or "\0" in text:
        raise InvalidInput(f"'{text[:80]}' is no KV store: give a folder", "store")
    return str(Path(text).absolute())


def open_store(address: str) -> BlockStore:
    """Asks nothing of it yet. Raises: InvalidInput for what is no address."""
    return LocalStore(Path(full_address(address)))
