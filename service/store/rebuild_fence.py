"""What became of a rebuild whose fence a worker has lost, for that worker's log."""

from sqlalchemy import Connection, select

from service.domain.errors import FenceLost
from service.store.tables import rebuilds


def lost_fence(conn: Connection, rebuild: str, fence: int) -> FenceLost:
    query = select(rebuilds.c.state, rebuilds.c.fence, rebuilds.c.owner, rebuilds.c.reason)
    row = conn.execute(query.where(rebuilds.c.rebuild_id == rebuild)).one_or_none()
    if row is None:
        stands = "there is no such row any more"
    elif row.state == "running":
        stands = f"{row.owner} holds it by fence {row.fence}, and goes on behind what is published"
    elif row.state == "queued":
        stands = f"it waits for a worker, who goes on behind what is published (fence {row.fence})"
    else:
        stands = f"it is {row.state}" + (f" ({row.reason})" if row.reason else "")
    return FenceLost(
        f"Rebuild {rebuild} is no longer held by fence {fence}: {stands}. This result comes too late and is not recorded."
    )
