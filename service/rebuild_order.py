"""Orders the rebuild that an attempt waits for."""

from collections.abc import Callable

from sqlalchemy import Connection

from service.domain.events import TurnPinned
from service.domain.head import Head
from service.domain.plan import RebuildQueue
from service.store import rebuilds

NewId = Callable[[str], str]
"""A fresh id under the given prefix."""


def order_rebuild(conn: Connection, state: Head, pinned: TurnPinned, new_id: NewId) -> str:
    rebuild = new_id("rb_")
    rebuilds.supersede_warmups(conn, tenant=state.tenant, conversation=state.id, revision=pinned.revision)
    rebuilds.enqueue(
        conn,
        rebuild=rebuild,
        tenant=state.tenant,
        conversation=state.id,
        turn=pinned.turn,
        attempt=pinned.attempt,
        revision=pinned.revision,
        offer=pinned.offer,
        tokens_total=state.window_tokens,
        queue=RebuildQueue.INTERACTIVE,
    )
    return rebuild
