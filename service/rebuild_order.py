"""The rebuild that an attempt waits for: ordered, or shared with a warm-up; and a warm-up's that it makes needless."""

from collections.abc import Callable

from sqlalchemy import Connection

from service.domain.events import TurnPinned
from service.domain.head import Head
from service.domain.plan import WarmUp
from service.domain.revision import RevisionDigest
from service.store import rebuilds, warm_ups

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


def find_warm_up(conn: Connection, state: Head, target: RevisionDigest) -> WarmUp | None:
    """That a worker is at. One that nobody is at is called off: the turn prefills by itself what it would, and sooner."""
    found = warm_ups.find(conn, state.tenant, state.id, target)
    if found is None or found.held:
        return None if found is None else found.warm_up
    warm_ups.call_off(conn, found.rebuild, "a turn prefills this history where it decodes")
    return None
