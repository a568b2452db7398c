"""Whether an engine answers the canary as its revision does, and what becomes of the answer on record; one transaction each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service.domain.adapter import Adapter, ServedAdapter, UnknownAdapter, in_one_line
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
from service.store import canaries, event_store, fleet


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


def judge_adapters(
    conn: Connection,
    boot: BootId,
    told: Sequence[Adapter],
    runs: Mapping[str, Run],
    *,
    required: bool,
    now: datetime,
) -> tuple[Adapter, ...]:
    """As they may be served: one that answers otherwise than its revision does is without a revision.

    `runs` are by name; where an adapter was asked nothing, and that is `required`, it is without one too.
    """
    address = next((e.address for e in fleet.live_engines(conn) if e.boot == boot), "")

    def judged(adapter: ServedAdapter) -> Adapter:
        run = runs.get(adapter.model)
        if run is None:
            missing = "it was asked no canary, and EVERTURN_CANARY_REQUIRED is set"
            return UnknownAdapter(model=adapter.model, reason=missing) if required else adapter
        failed = judge(conn, adapter.revision, run, boot=boot, address=address, now=now)
        if failed is None:
            return adapter
        why = f"it does not answer the canary as the first engine of {adapter.revision} did: {_difference(failed)}"
        return UnknownAdapter(model=adapter.model, reason=in_one_line(why))

    served = [adapter for adapter in told if isinstance(adapter, ServedAdapter)]
    # In one order, whoever tells of them: each is judged under the lock of its revision's stream.
    after = {one.model: judged(one) for one in sorted(served, key=lambda one: (one.revision, one.model))}
    return tuple(after.get(adapter.model, adapter) for adapter in told)


def forget(conn: Connection, revision: RevisionDigest, *, by: str, reason: str, now: datetime) -> None:
    """Where the engine that recorded it was the broken one. Raises: NotFound: nothing is on record."""
    version = canaries.lock(conn, revision)
    if canaries.find_golden(conn, revision) is None:
        raise NotFound("canary of revision", revision)
    _append(conn, version, CanaryForgotten(revision=revision, by=by, reason=reason), now)


def words(failed: CanaryFailed) -> str:
    """What was different, and the ways out."""
    alike = failed.place if failed.part == ANSWER else 0
    looser = f" Do both compute well enough? Start it with --canary prefix:{alike}." if alike else ""
    return (
        f"Engine {failed.boot} is not let in: it measured itself as {failed.revision}, and does not answer the canary as the first "
        f"engine of that revision did: {_difference(failed)}. Look at its hardware and libraries. Was the first one wrong? "
        f"DELETE /admin/revisions/{failed.revision}/canary.{looser}"
    )


def _difference(failed: CanaryFailed) -> Difference:
    return Difference(part=failed.part, place=failed.place, expected=failed.expected, got=failed.got)


def _recorded(revision: RevisionDigest, run: Run, boot: BootId) -> CanaryRecorded:
    return CanaryRecorded(
        revision=revision, boot=boot, prompt=run.generation.prompt, answer=run.generation.answer
    )


def _append(
    conn: Connection, version: int, event: CanaryRecorded | CanaryFailed | CanaryForgotten, now: datetime
) -> None:
    stream = canaries.stream_of(event.revision)
    event_store.append(conn, tenant=FLEET, stream=stream, expected_version=version, events=[event], now=now)
