"""The recorded answers of revisions to the canary, each on a stream of its own: the last that was recorded and not forgotten."""

from typing import Any

from sqlalchemy import Connection, func, select

from service.domain.canary import CanaryFailed, CanaryForgotten, CanaryRecorded
from service.domain.events import FLEET
from service.domain.revision import RevisionDigest
from service.store import event_store
from service.store.codec import EventRow, decode
from service.store.tables import events

FAILURES_SHOWN = 20


def lock(conn: Connection, revision: RevisionDigest) -> int:
    """Until the transaction ends nobody else records for it; returns the version of its stream."""
    event_store.lock_stream(conn, FLEET, stream_of(revision))
    query = select(func.coalesce(func.max(events.c.stream_version), 0))
    version: int = conn.execute(query.where(*_of(revision))).scalar_one()
    return version


def find_golden(conn: Connection, revision: RevisionDigest) -> CanaryRecorded | None:
    last = _newest(conn, revision, (CanaryRecorded.name, CanaryForgotten.name), 1)
    return last[0] if last and isinstance(last[0], CanaryRecorded) else None


def failures(conn: Connection, revision: RevisionDigest) -> list[CanaryFailed]:
    """The newest first."""
    found = _newest(conn, revision, (CanaryFailed.name,), FAILURES_SHOWN)
    return [event for event in found if isinstance(event, CanaryFailed)]


def stream_of(revision: RevisionDigest) -> str:
    return f"canary/{revision}"


def _newest(conn: Connection, revision: RevisionDigest, types: tuple[str, ...], most: int) -> list[Any]:
    """However often engines that fail are started again."""
    query = (
        select(events.c.type, events.c.schema_number, events.c.payload)
        .where(*_of(revision), events.c.type.in_(types))
        .order_by(events.c.stream_version.desc())
        .limit(most)
    )
    return [
        decode(EventRow(type=row.type, schema_number=row.schema_number, payload=row.payload))
        for row in conn.execute(query)
    ]


def _of(revision: RevisionDigest) -> tuple[Any, ...]:
    return events.c.tenant_id == FLEET, events.c.stream == stream_of(revision)
