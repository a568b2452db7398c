"""What must hold of the record whatever was killed: compared with what clients were told."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, select

from service.domain.conversation import Conversation
from service.domain.events import (
    ConversationId,
    KvRebuilt,
    MessageAccepted,
    TurnCompleted,
    TurnPinned,
    TurnStarted,
)
from service.domain.turn import TurnState
from service.store import event_store
from service.store.feed import Cursor, read_page
from service.store.integrity import Walked, verify
from service.store.tables import events, rebuilds, turns
from tests.chaos.client import Ask, Outcome, Told
from tests.chaos.rig import TENANT
from tests.engines.simulated import SimulatedEngine, text_of

FEED_PAGE = 1000


class Broken(StrEnum):
    LOST = "lost"
    """Acknowledged, and not in the record as it was acknowledged."""
    DOUBLED = "doubled"
    """One request with more than one effect, or a gap or repetition in the record."""
    UNRESOLVED = "unresolved"
    """Accepted, and neither answered nor failed; or its conversation does not go on."""
    CHAIN = "chain_breaks"
    MIXED = "mixed"
    """An answer that is not what one attempt made of the prompt that stands in the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    kind: Broken
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    ask: Ask
    told: tuple[Told, ...]
    """At every time that it was sent."""


def violations(
    conn: Connection, exchanges: Iterable[Exchange], engines: Mapping[str, SimulatedEngine]
) -> Iterator[Violation]:
    """Of conversations in which nothing else was said."""
    by_conversation: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        by_conversation.setdefault(exchange.ask.conversation, []).append(exchange)
    for name, theirs in by_conversation.items():
        conversation = ConversationId(name)
        state = event_store.load_conversation(conn, TENANT, conversation)
        yield from unfit(conn, state)
        yield from _effects(conn, conversation, theirs)
        yield from _answer(state, engines)
        for exchange in theirs:
            yield from _kept(state, exchange)


def unfit(conn: Connection, state: Conversation) -> Iterator[Violation]:
    """To be gone on with: a gap or a repetition, or something that has not ended."""
    yield from _versions(conn, state.id)
    yield from _ended(conn, state)


def broken_chains(conn: Connection) -> Iterator[Violation]:
    """As `everturn audit verify` does."""
    for found in verify(conn, Walked()):
        yield Violation(kind=Broken.CHAIN, what=str(found))


def feed_differs(conn: Connection) -> Iterator[Violation]:
    """The feed, read from its beginning, against the table."""
    read = Counter[tuple[str, int]]()
    cursor = Cursor()
    while page := read_page(conn, after=cursor, limit=FEED_PAGE):
        read.update((event.stream, event.version) for event in page)
        cursor = page[-1].cursor
    stored = Counter((row.stream, row.stream_version) for row in conn.execute(select(events)))
    for missing in stored - read:
        yield Violation(kind=Broken.LOST, what=f"{missing} is in the table and not in the feed")
    for repeated in read - stored:
        yield Violation(kind=Broken.DOUBLED, what=f"{repeated} is in the feed more often than in the table")


def _versions(conn: Connection, conversation: ConversationId) -> Iterator[Violation]:
    query = (
        select(events.c.stream_version)
        .where(events.c.tenant_id == TENANT, events.c.stream == conversation)
        .order_by(events.c.position)
    )
    versions = list(conn.execute(query).scalars())
    if versions != list(range(1, len(versions) + 1)):
        yield Violation(kind=Broken.DOUBLED, what=f"{conversation} has versions {versions}")


def _effects(
    conn: Connection, conversation: ConversationId, exchanges: list[Exchange]
) -> Iterator[Violation]:
    """Each request that was resolved made exactly one turn and one message, and no other made any."""
    history = event_store.read(conn, tenant=TENANT, stream=conversation)
    said = Counter(event.text for event in history if isinstance(event, MessageAccepted))
    expected = Counter(exchange.ask.text for exchange in exchanges)
    for text in said - expected:
        yield Violation(kind=Broken.DOUBLED, what=f"{conversation} holds '{text}' {said[text]} times")
    for text in expected - said:
        yield Violation(kind=Broken.LOST, what=f"{conversation} does not hold '{text}'")
    started = [event.turn for event in history if isinstance(event, TurnStarted)]
    if len(started) != len(exchanges):
        yield Violation(
            kind=Broken.DOUBLED, what=f"{conversation}: {len(exchanges)} requests, turns {started}"
        )
    ended = Counter(
        (event.name, event.turn, event.attempt)
        for event in history
        if isinstance(event, TurnPinned | KvRebuilt | TurnCompleted)
    )
    for what, times in ended.items():
        if times > 1:
            yield Violation(kind=Broken.DOUBLED, what=f"{what} was recorded {times} times")


def _ended(conn: Connection, state: Conversation) -> Iterator[Violation]:
    if state.open_turn is not None:
        yield Violation(
            kind=Broken.UNRESOLVED, what=f"{state.open_turn.id} of {state.id} is {state.open_turn.state}"
        )
    query = select(turns.c.turn_id).where(turns.c.conversation_id == state.id, ~turns.c.closed)
    for turn in conn.execute(query).scalars():
        yield Violation(kind=Broken.UNRESOLVED, what=f"the row of {turn} of {state.id} is open")
    running = select(rebuilds.c.rebuild_id, rebuilds.c.state).where(
        rebuilds.c.conversation_id == state.id, rebuilds.c.finished_at.is_(None)
    )
    for rebuild, doing in conn.execute(running):
        yield Violation(kind=Broken.UNRESOLVED, what=f"rebuild {rebuild} of {state.id} is {doing}")


def _answer(state: Conversation, engines: Mapping[str, SimulatedEngine]) -> Iterator[Violation]:
    """The last one: its window holds all before it."""
    last = state.last
    if last is None:
        return
    prompt = state.window[: -len(last.output)]
    made = engines[last.engine].answer(prompt)[: len(last.output)]
    if list(last.output) != made or last.text != "".join(map(text_of, made)):
        yield Violation(kind=Broken.MIXED, what=f"{last.turn} of {state.id} says '{last.text}'")


def _kept(state: Conversation, exchange: Exchange) -> Iterator[Violation]:
    told = [one for one in exchange.told if one.outcome is not Outcome.UNKNOWN]
    if not told:
        yield Violation(kind=Broken.UNRESOLVED, what=f"{exchange.ask.key}: {exchange.told}")
        return
    if len({(one.outcome, one.response) for one in told}) > 1:
        yield Violation(kind=Broken.DOUBLED, what=f"{exchange.ask.key} was told {told}")
    for one in told:
        turn = next((t for t in state.turns.values() if t.id == one.response), None)
        if turn is None:
            yield Violation(kind=Broken.LOST, what=f"{one.response} of {state.id} is gone")
        elif one.outcome is Outcome.FAILED:
            if turn.state is not TurnState.FAILED:
                yield Violation(kind=Broken.DOUBLED, what=f"{turn.id} was told failed, and is {turn.state}")
        elif turn.completed is None or turn.completed.text != one.text:
            yield Violation(kind=Broken.LOST, what=f"{turn.id} was told '{one.text}', and is {turn.state}")
