"""A conversation made once for an idempotency key: its id follows from the key and from what was asked for."""

from collections.abc import Callable
from hashlib import sha256

from sqlalchemy import Connection

from service.domain.errors import key_reused
from service.domain.events import ConversationId, TenantId
from service.store import event_store
from service.store.streams import find_stream_beginning

OF_KEY = 20
OF_BODY = 12
"""Hex digits of the id: of a tenant's own keys no two are alike in 80 bits."""


def open_once(
    conn: Connection,
    tenant: TenantId,
    *,
    key: str,
    request_hash: str,
    make: Callable[[ConversationId], ConversationId],
) -> ConversationId:
    """The conversation that this key made before, also if it is deleted by now; else what `make` makes under the id it is given.

    Raises:
        InvalidInput: the key has made a conversation of another request.
    """
    beginning = "conv_" + sha256(f"{tenant}\0{key}".encode()).hexdigest()[:OF_KEY]
    wanted = ConversationId(beginning + request_hash[:OF_BODY])
    # Of two at once, the second must find what the first has made.
    event_store.lock_stream(conn, tenant, f"conversation-key/{key}")
    known = find_stream_beginning(conn, tenant, beginning)
    if known is None:
        return make(wanted)
    if known != wanted:
        raise key_reused(key, f"conversation {known}")
    return wanted
