"""Orders the rebuild that an attempt waits for."""

from collections.abc import Callable

from sqlalchemy import Connection

from service.domain.events import TurnPinned
from service.domain.head import Head
from service.store import rebuilds

NewId = Callable[[str], str]
"""A fresh id under the given prefix."""


def order_rebuild(conn: Connection, state: Head, pinned: TurnPinned, new_id: NewId) -> str:
    """One that a warm-up has ordered of the same history is waited for, with all that it has done, and nobody else's any more."""
    return rebuilds.join(
        conn,
        rebuild=new_id("rb_"),
        tenant=state.tenant,
        conversation=state.id,
        turn=pinned.turn,
        attempt=pinned.attempt,
        revision=pinned.revision,
        offer=pinned.offer,
        tokens_total=state.window_tokens,
    )
