"""What an operator does with a rebuild: cancel it, or have it tried again; one function for each transaction."""

from sqlalchemy import Connection

from service.domain.errors import Conflict, NotFound
from service.store import rebuilds, rollouts
from service.store.rebuilds import Rebuild, RebuildState

CANCELLED = "cancelled by "


def cancel(conn: Connection, rebuild: str, *, by: str) -> Rebuild:
    """A turn that waits for it prefills where it decodes; a conversation that was to be warmed stays as it is.

    Whoever works on it stops at the end of the chunk.

    Raises:
        NotFound: no such rebuild.
        Conflict: it has ended.
    """
    found = _found(conn, rebuild)
    state = RebuildState.FAILED if found.rollout is None else RebuildState.SUPERSEDED
    if not rebuilds.end_by_hand(conn, rebuild, state, f"{CANCELLED}{by}"):
        raise Conflict(f"Rebuild {rebuild} is {found.state}: there is nothing to cancel.")
    return _found(conn, rebuild)


def retry(conn: Connection, rebuild: str) -> Rebuild:
    """Queued again, to go on from what was published of it; the sweeper rings for it.

    Raises:
        NotFound: no such rebuild.
        Conflict: it has not failed, its turn went on without it, or its rollout has ended.
        VersionConflict: another one makes the same by now.
    """
    found = _found(conn, rebuild)
    if found.rollout is None:
        raise Conflict(f"Rebuild {rebuild} was for turn {found.turn}, which goes on without it.")
    rollout = rollouts.find(conn, found.rollout)
    if rollout.ended_at is not None:
        raise Conflict(
            f"Rebuild {rebuild} was for rollout {found.rollout}, which is {rollout.rollout.state}."
        )
    if not rebuilds.requeue(conn, rebuild):
        raise Conflict(
            f"Rebuild {rebuild} is {found.state}: only what failed or was superseded is tried again."
        )
    return _found(conn, rebuild)


def _found(conn: Connection, rebuild: str) -> Rebuild:
    found = rebuilds.find(conn, rebuild)
    if found is None:
        raise NotFound("rebuild", rebuild)
    return found
