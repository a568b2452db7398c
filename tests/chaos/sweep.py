"""One fault in one turn: what is counted, what is broken, what the client does then, and what the record must show."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from openai import OpenAI

from tests.chaos.checks import Exchange, Violation, broken_chains, violations
from tests.chaos.client import Ask, Outcome, send, settle
from tests.chaos.faults import Fault, Kind
from tests.chaos.rig import API, WORKER, Rig
from tests.chaos.wire import Message, Moment, Session, Trap, Watch

QUIET_S = 0.15
"""Without a message, after the answer: the turn's last transaction is over."""
POLL_S = 0.005
WARMING_TURNS = 8

Done = TypeVar("Done")

_numbers = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    kind: Kind
    moment: Moment
    at: Message | None
    """None where the turn was over before."""
    exchanges: tuple[Exchange, ...]
    violations: tuple[Violation, ...]


@dataclass(slots=True)
class Tally:
    """Of all runs, for the report."""

    runs: list[Run] = field(default_factory=list)

    @property
    def reached(self) -> list[Run]:
        return [run for run in self.runs if run.at is not None]

    def broken(self) -> Counter[str]:
        return Counter(violation.kind.value for run in self.runs for violation in run.violations)

    def exchanges(self) -> list[Exchange]:
        return [exchange for run in self.runs for exchange in run.exchanges]

    def acknowledged(self) -> int:
        return sum(exchange.told[-1].outcome is Outcome.ANSWERED for exchange in self.exchanges())

    def failed(self) -> int:
        return sum(exchange.told[-1].outcome is Outcome.FAILED for exchange in self.exchanges())

    def unknown_at_first(self) -> int:
        """After three tries."""
        return sum(exchange.told[0].outcome is Outcome.UNKNOWN for exchange in self.exchanges())


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Whose messages are counted, and on which revision the turn with the fault in it is answered."""

    application: str = API
    revision: str | None = None
    """None for that of the turn before it; with another, its KV is rebuilt first."""


A_TURN = Scenario()


def a_rebuild(rig: Rig) -> Scenario:
    return Scenario(application=WORKER, revision=[*rig.engines.values()][-1].revision)


def trace(rig: Rig, client: OpenAI, scenario: Scenario = A_TURN) -> list[Message]:
    """The messages of a turn that nothing happens to; the turns before it have made what is made once."""
    conversation = client.conversations.create().id
    for number in range(WARMING_TURNS):
        ask = _ask(conversation, revision=None if number % 2 else scenario.revision)
        assert send(client, ask).outcome is Outcome.ANSWERED
    conversation = _begun(client)[0]
    until_quiet(rig.proxy.watch(scenario.application))
    watch = rig.proxy.watch(scenario.application)
    assert send(client, _ask(conversation, revision=scenario.revision)).outcome is Outcome.ANSWERED
    until_quiet(watch)
    rig.proxy.unwatch()
    return watch.passed


def break_once(
    rig: Rig,
    client: OpenAI,
    kind: Kind,
    moment: Moment,
    due: Callable[[Sequence[Message]], bool],
    *,
    streamed: bool = False,
    scenario: Scenario = A_TURN,
) -> Run:
    """A turn, a turn with the fault in it, and a turn after it, in a conversation of their own."""
    conversation, first = _begun(client)
    ask = _ask(conversation, streamed=streamed, revision=scenario.revision)
    until_quiet(rig.proxy.watch(scenario.application))
    trap = Trap(due=due, moment=moment, spring=spring_of(rig, kind))
    watch = rig.proxy.watch(scenario.application, trap=trap)
    told = done_and_mended(rig, watch, lambda: send(client, ask))
    rig.proxy.unwatch()
    later = settle(client, ask)
    next_ask = _ask(conversation)
    after = settle(client, next_ask)
    exchanges = (
        first,
        Exchange(ask=ask, told=(told, later)),
        Exchange(ask=next_ask, told=(after,)),
    )
    with rig.database.connect() as conn:
        found = [*violations(conn, exchanges, rig.engines), *broken_chains(conn)]
    return Run(kind=kind, moment=moment, at=watch.at, exchanges=exchanges, violations=tuple(found))


def sweep(
    rig: Rig,
    client: OpenAI,
    faults: Sequence[Fault],
    said: Callable[[Run], None],
    scenario: Scenario = A_TURN,
) -> Tally:
    """Every second turn is streamed."""
    tally = Tally()
    for number, fault in enumerate(faults):
        run = break_once(
            rig,
            client,
            fault.kind,
            fault.moment,
            fault.due,
            streamed=bool(number % 2),
            scenario=scenario,
        )
        tally.runs.append(run)
        said(run)
    return tally


def _begun(client: OpenAI) -> tuple[str, Exchange]:
    conversation = client.conversations.create().id
    ask = _ask(conversation)
    return conversation, Exchange(ask=ask, told=(settle(client, ask),))


def _ask(conversation: str, *, streamed: bool = False, revision: str | None = None) -> Ask:
    number = next(_numbers)
    return Ask(
        conversation=conversation,
        key=f"key-{number}",
        text=f"question {number}",
        streamed=streamed,
        revision=revision,
    )


def spring_of(rig: Rig, kind: Kind) -> Callable[[Session], None]:
    def spring(session: Session) -> None:
        match kind:
            case Kind.KILL_API:
                rig.kill_api()
            case Kind.KILL_POSTGRES:
                rig.kill_postgres()
            case Kind.KILL_BACKEND:
                rig.kill_backend(session.backend_pid)
            case Kind.KILL_WORKER:
                rig.kill_worker(session.application)
            case Kind.CUT:
                return  # which the trap does to every connection it springs in

    return spring


def done_and_mended(rig: Rig, watch: Watch, work: Callable[[], Done]) -> Done:
    """What has died is started while the client tries again: from this thread, which must outlive it."""
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not (watch.sprung.wait(POLL_S) or working.done()):
            continue
        if not watch.sprung.is_set():
            until_quiet(watch)
        rig.mend()
        return working.result()


def until_quiet(watch: Watch) -> None:
    deadline = time.monotonic() + 10
    while watch.moved.wait(QUIET_S) and time.monotonic() < deadline:
        watch.moved.clear()
        if watch.sprung.is_set():
            return
