"""Whether an engine answers the canary as its revision does, and what becomes of the answer on record; one transaction each."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service.domain.artifact import BootId
from service.domain.canary import (
    ANSWER,
    CanaryFailed,
    CanaryForgotten,
    CanaryRecorded,
    Difference,
    Generation,
    first_difference,
)
from service.domain.errors import NotFound
from service.domain.events import FLEET
from service.domain.revision import RevisionDigest
from service.store import canaries, event_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One engine's answer. Its operator has so many tokens of it compared."""

    generation: Generation
    compared: int


def judge(
    conn: Connection, revision: RevisionDigest, run: Run, *, boot: BootId, address: str, now: datetime
) -> CanaryFailed | None:
    """The first engine of a revision is what later ones are held against. None: it may serve."""
    version = canaries.lock(conn, revision)
    golden = canaries.find_golden(conn, revision)
    if golden is None:
        _append(conn, version, _recorded(revision, run, boot), now)
        return None
    expected = Generation(prompt=golden.prompt, answer=golden.answer)
    difference = first_difference(expected, run.generation, run.compared)
    if difference is None:
        return None
    failed = CanaryFailed(
        revision=revision,
        boot=boot,
        address=address,
        compared=run.compared,
        part=difference.part,
        place=difference.place,
        expected=difference.expected,
        got=difference.got,
    )
    _append(conn, version, failed, now)
    return failed


def forget(conn: Connection, revision: RevisionDigest, *, by: str, reason: str, now: datetime) -> None:
    """Where the engine that recorded it was the broken one. Raises: NotFound: nothing is on record."""
    version = canaries.lock(conn, revision)
    if canaries.find_golden(conn, revision) is None:
        raise NotFound("canary of revision", revision)
    _append(conn, version, CanaryForgotten(revision=revision, by=by, reason=reason), now)


def words(failed: CanaryFailed) -> str:
    """What was different, and the ways out."""
    difference = Difference(part=failed.part, place=failed.place, expected=failed.expected, got=failed.got)
    alike = failed.place if failed.part == ANSWER else 0
    looser = f" Do both compute well enough? Start it with --canary prefix:{alike}." if alike else ""
    return (
        f"Engine {failed.boot} is not let in: it measured itself as {failed.revision}, and does not answer the canary as the first "
        f"engine of that revision did: {difference}. Look at its hardware and libraries. Was the first one wrong? "
        f"DELETE /admin/revisions/{failed.revision}/canary.{looser}"
    )


def _recorded(revision: RevisionDigest, run: Run, boot: BootId) -> CanaryRecorded:
    return CanaryRecorded(
        revision=revision, boot=boot, prompt=run.generation.prompt, answer=run.generation.answer
    )


def _append(
    conn: Connection, version: int, event: CanaryRecorded | CanaryFailed | CanaryForgotten, now: datetime
) -> None:
    stream = canaries.stream_of(event.revision)
    event_store.append(conn, tenant=FLEET, stream=stream, expected_version=version, events=[event], now=now)
