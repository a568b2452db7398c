"""One seed: a turn, a turn with the fault in it, and a turn after it; what clients were told against all that is on record."""

import time
from collections import ChainMap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count

from openai import OpenAI
from sqlalchemy import Connection, TextClause, text

from tests.chaos.checks import Broken, Exchange, Violation, broken_chains, violations
from tests.chaos.client import Ask, Outcome, Told, send, settle
from tests.chaos.rig import API, WORKER
from tests.chaos.wire import Message, Moment, Trap, Watch
from tests.faults.engine_process import ANSWERS_NEW, WIPED, KvFolder
from tests.faults.plan import Fault, Kind
from tests.faults.rig import SPLIT_MIN_TOKENS, Fleet

QUIET_S = 0.15
POLL_S = 0.01
ENDS_S = 30.0
"""For what nobody waits for: a rebuild that a turn went on without, KV that is noted after the answer."""

_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    seed: int
    fault: Fault
    struck: str | None
    """Where; None where the turn was over before."""
    exchanges: tuple[Exchange, ...]
    violations: tuple[Violation, ...]
    seconds: float

    @property
    def how_to_rerun(self) -> str:
        return f"python -m tests.faults --first {self.seed} --seeds 1"


def live(fleet: Fleet, client: OpenAI, seed: int, fault: Fault) -> Run:
    began = time.monotonic()
    conversation = client.conversations.create().id
    first = _settled(client, _ask(conversation))
    new = fleet.twins[fleet.engines[ANSWERS_NEW].boot].revision
    ask = _ask(
        conversation,
        streamed=fault.streamed,
        revision=new if fault.kind is Kind.REBUILD else None,
        letters=SPLIT_MIN_TOKENS * 2 if fault.kind is Kind.SPLIT else 0,
    )
    fleet.prepare(fault)
    watch = _watched(fleet, fault)
    fleet.arm(fault)
    told = _send_and_mend(fleet, client, ask, watch)
    exchanges = (
        first,
        Exchange(ask=ask, told=(told, settle(client, ask))),
        _settled(client, _ask(conversation)),
    )
    if fleet.errors:
        raise fleet.errors.pop()
    struck = fleet.struck or (None if watch is None or watch.at is None else str(watch.at))
    return Run(
        seed=seed,
        fault=fault,
        struck=struck,
        exchanges=exchanges,
        violations=tuple(found_of(fleet, exchanges)),
        seconds=time.monotonic() - began,
    )


def disagreements(conn: Connection, fleet: Fleet, exchange: Exchange) -> Iterator[Violation]:
    """Between the audit views and what the client was told."""
    told = exchange.told[-1]
    turn = {"turn": told.response}
    state = conn.execute(
        text("SELECT state, revision, failure_message FROM audit.turns WHERE turn_id = :turn"), turn
    )
    row = state.one_or_none()
    wanted = "completed" if told.outcome is Outcome.ANSWERED else "failed"
    if row is None or row.state != wanted or (wanted == "failed" and not row.failure_message):
        yield Violation(kind=Broken.LOST, what=f"audit.turns has {row} for {told}")
        return
    attempts = conn.execute(
        text("SELECT outcome, count(*) AS n FROM audit.attempts WHERE turn_id = :turn GROUP BY 1"), turn
    )
    outcomes = {one.outcome: one.n for one in attempts}
    if outcomes.get("completed", 0) != (wanted == "completed") or "running" in outcomes:
        yield Violation(kind=Broken.DOUBLED, what=f"audit.attempts has {outcomes} for {told}")
    provenance = conn.execute(text("SELECT * FROM audit.turn_provenance WHERE turn_id = :turn"), turn).all()
    if len(provenance) != (wanted == "completed"):
        yield Violation(kind=Broken.DOUBLED, what=f"{told.response} has {len(provenance)} provenances")
    for one in provenance:
        asked = exchange.ask.revision
        if one.first_divergence is not None or (asked is not None and one.decode_revision != asked):
            yield Violation(kind=Broken.MIXED, what=f"{told.response} parts at {one.first_divergence}: {one}")
        if one.kv_source == "prefilled" and not _are_two(fleet, one.prefill_engine, one.decode_engine):
            yield Violation(kind=Broken.MIXED, what=f"{told.response} was prefilled by nobody else: {one}")


def _are_two(fleet: Fleet, prefill: str, decode: str) -> bool:
    """Of one revision, and the one is there to prefill and the other to answer."""
    one, other = fleet.twins[prefill], fleet.twins[decode]
    return one.revision == other.revision and prefill in fleet.prefilling and decode not in fleet.prefilling


def _settled(client: OpenAI, ask: Ask) -> Exchange:
    return Exchange(ask=ask, told=(settle(client, ask),))


def _ask(conversation: str, *, streamed: bool = False, revision: str | None = None, letters: int = 0) -> Ask:
    number = next(_numbers)
    return Ask(
        conversation=conversation,
        key=f"fault-{number}",
        text=f"question {number}".ljust(letters, "."),
        streamed=streamed,
        revision=revision,
    )


def _watched(fleet: Fleet, fault: Fault) -> Watch | None:
    application = {"api": API, "worker": WORKER}.get(fault.site.where)
    if application is None:
        return None
    _quiet(fleet.base.proxy.watch(application))

    def due(passed: Sequence[Message]) -> bool:
        return len(passed) == fault.site.number

    trap = Trap(
        due=due,
        moment=Moment.AFTER if fault.after else Moment.BEFORE,
        spring=lambda session: fleet.strike(fault, None, session),
    )
    return fleet.base.proxy.watch(application, trap=trap)


def _send_and_mend(fleet: Fleet, client: OpenAI, ask: Ask, watch: Watch | None) -> Told:
    """What has died is started while the client tries again: from this thread, which must outlive it."""

    def struck() -> bool:
        return fleet.struck is not None or (watch is not None and watch.sprung.is_set())

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, client, ask)
        while not (struck() or sending.done()):
            time.sleep(POLL_S)
        if not struck() and watch is not None:
            _quiet(watch)
        # From here on nothing is broken any more, also if it was not reached.
        fleet.base.proxy.unwatch()
        fleet.disarm()
        fleet.mend()
        return sending.result()


def found_of(fleet: Fleet, exchanges: Sequence[Exchange]) -> list[Violation]:
    conversation = exchanges[0].ask.conversation
    with fleet.base.database.connect() as conn:
        _ended(conn, conversation)
        found = [*violations(conn, exchanges, fleet.twins), *broken_chains(conn)]
        found += _artifacts(conn, fleet, conversation)
    with fleet.auditor.connect() as conn:
        for exchange in exchanges:
            found += disagreements(conn, fleet, exchange)
        for view in ("cross_revision_hits", "chain_breaks"):
            rows = conn.execute(text(f"SELECT * FROM audit.{view}")).all()  # noqa: S608 ours
            found += [Violation(kind=Broken.MIXED, what=f"audit.{view}: {row}") for row in rows]
    return found


def _ended(conn: Connection, conversation: str) -> None:
    """Waits for the rebuilds of the conversation; what does not end is found by the checks."""
    query = text("SELECT count(*) FROM rebuilds WHERE conversation_id = :of AND finished_at IS NULL")
    deadline = time.monotonic() + ENDS_S
    while conn.execute(query, {"of": conversation}).scalar_one() and time.monotonic() < deadline:
        time.sleep(0.1)


def _artifacts(conn: Connection, fleet: Fleet, conversation: str) -> Iterator[Violation]:
    """Each that a plan may offer is of an attempt that was accepted, of a rebuild that was, or of a prompt alone."""
    given = {"of": conversation}
    offered = conn.execute(text("SELECT artifact_id FROM artifacts WHERE conversation_id = :of"), given)
    accepted = set(conn.execute(_attempts("turn.completed", ""), given).scalars())
    prefilled = set(conn.execute(_attempts("turn.pinned", ".prefill"), given).scalars())
    done = text("SELECT artifact_id FROM rebuilds WHERE conversation_id = :of AND state = 'done'")
    rebuilt = set(conn.execute(done, given).scalars())
    stored = ChainMap(KvFolder(fleet.kv), KvFolder(fleet.kv / WIPED))
    for artifact in offered.scalars():
        attempt = stored[artifact].attempt
        if attempt not in accepted | prefilled and artifact not in rebuilt:
            yield Violation(
                kind=Broken.MIXED, what=f"{artifact} of {attempt} is offered, which was not accepted"
            )


def _attempts(event: str, suffix: str) -> TextClause:
    """As engines call them. Of those that were pinned: where another engine was to prefill."""
    return text(
        "SELECT (payload ->> 'turn') || '.' || (payload ->> 'attempt') || CAST(:suffix AS text) FROM events"
        " WHERE stream = :of AND type = :event AND (type = 'turn.completed' OR payload ->> 'prefill' IS NOT NULL)"
    ).bindparams(event=event, suffix=suffix)


def _quiet(watch: Watch) -> None:
    deadline = time.monotonic() + 10
    while watch.moved.wait(QUIET_S) and time.monotonic() < deadline:
        watch.moved.clear()
        if watch.sprung.is_set():
            return
