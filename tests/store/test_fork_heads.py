"""What is read of a fork in part is what all its histories fold to, at every version, and costs the same at any length."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, TextClause, event

from service.domain.conversation import Conversation, branch, evolve
from service.domain.events import (
    ConversationCreated,
    ConversationErased,
    ConversationEvent,
    ConversationForked,
    ConversationId,
    TenantId,
    TurnCompleted,
    TurnId,
)
from service.domain.head import head_of
from service.domain.transcript import Transcript
from service.store import ancestry, event_store, heads
from service.store.ancestry import NEWEST
from tests.domain.random_histories import TENANT, Teller
from tests.store.histories import ACME, append
from tests.store.test_heads import answered
from tests.store.test_query_plans import plan_of

__all__ = ["plan_of"]

NAMES = [ConversationId(f"conv_{level}") for level in (1, 2, 3)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Streams, each forked of the one before it, whole: what came after the fork in a parent as well."""

    streams: tuple[tuple[ConversationId, tuple[ConversationEvent, ...]], ...]


def forked_of(
    parent: ConversationId, events: Sequence[ConversationEvent], version: int
) -> ConversationForked:
    completed = events[version - 1]
    assert isinstance(completed, TurnCompleted)
    return ConversationForked(
        parent=parent, parent_version=version, turn=completed.turn, parent_chain="00" * 32
    )


@st.composite
def lines(draw: st.DrawFn) -> Line:
    teller = Teller(draw)
    teller.add(ConversationCreated(alias="production"))
    base, streams = Conversation(tenant=TENANT, id=NAMES[0]), []
    for level, name in enumerate(NAMES):
        for _ in range(draw(st.integers(3, 14))):
            teller.move()
        streams.append((name, tuple(teller.events)))
        answers = [n for n, one in enumerate(teller.events, 1) if isinstance(one, TurnCompleted)]
        if not answers or level + 1 == len(NAMES):
            break
        version = teller.choose(answers)
        as_of = fold_onto(base, teller.events[:version])
        forked = forked_of(name, teller.events, version)
        numbers, teller = teller.numbers, Teller(draw)
        base = teller.state = branch(as_of, NAMES[level + 1])
        teller.numbers = numbers
        teller.add(ConversationCreated(alias="staging"), forked)
    return Line(streams=tuple(streams))


def fold_onto(base: Conversation, events: Sequence[ConversationEvent]) -> Conversation:
    state = base
    for one in events:
        state = evolve(state, one)
    return state


def tell(conn: Connection, tenant: TenantId, line: Line) -> None:
    """All but the last stream; what was erased is erased."""
    for stream, events in line.streams[:-1]:
        append(conn, *events, stream=stream, tenant=tenant)
        if isinstance(events[-1], ConversationErased):
            event_store.erase_contents(conn, tenant=tenant, stream=stream)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(line=lines())
def test_head_and_transcript_of_a_fork_are_at_every_version_those_of_all_its_histories(
    conn: Connection, line: Line
) -> None:
    tenant = TenantId(uuid4().hex)
    tell(conn, tenant, line)
    fork, events = line.streams[-1]
    for version, one in enumerate(events):
        append(conn, one, stream=fork, tenant=tenant, after=version)
        if isinstance(one, ConversationErased):
            event_store.erase_contents(conn, tenant=tenant, stream=fork)
        if version == 0 and len(line.streams) > 1:
            continue  # no fork yet
        whole = event_store.load_conversation(conn, tenant, fork)
        assert heads.load_head(conn, tenant, fork) == head_of(whole)
        assert heads.load_transcript(conn, tenant, fork) == Transcript.of(whole)
        assert heads.load_window(conn, tenant, fork) == whole.window
        if whole.erased is None:
            assert heads.load_metadata(conn, tenant, fork) == whole.metadata
        for turn in whole.turns:
            asked = heads.load_head(conn, tenant, fork, turn=turn)
            assert (asked, list(asked.turns)) == (head_of(whole, turn), list(head_of(whole, turn).turns))


def in_drivers_form(statement: TextClause) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", statement.text).replace("%(conversation)s", "%(stream)s")


def rows_read(conn: Connection, load: Callable[[], object]) -> int:
    counted = []

    def count(_conn: object, cursor: object, *_: object) -> None:
        counted.append(cursor.rowcount)  # type: ignore[attr-defined]

    event.listen(conn, "after_cursor_execute", count)
    load()
    event.remove(conn, "after_cursor_execute", count)
    return sum(counted)


def test_a_head_of_a_fork_is_read_from_as_many_rows_after_many_turns_as_after_a_few(conn: Connection) -> None:
    def read(turns: int) -> int:
        """A fork of so many turns with so many turns of its own."""
        parent, child = ConversationId(f"conv_p{turns}"), ConversationId(f"conv_c{turns}")
        told = [one for one in answered(turns, f"resp_p{turns}") if isinstance(one, ConversationEvent)]
        append(conn, *told, stream=parent)
        created, *rest = answered(turns, f"resp_c{turns}")
        append(conn, created, forked_of(parent, told, len(told)), *rest, stream=child)
        return rows_read(conn, lambda: heads.load_head(conn, ACME, child, turn=TurnId(f"resp_p{turns}_0")))

    assert read(2) == read(30)


@pytest.mark.parametrize(
    ("statement", "given"),
    [
        (heads.TURN, {"turn": "resp_77", "newest": NEWEST}),
        (heads.METADATA, {}),
        (in_drivers_form(ancestry.LINEAGE), {}),
        (in_drivers_form(ancestry.DELETED), {"after": 0, "upto": NEWEST}),
    ],
    ids=["an older turn", "metadata", "ancestors", "deletions"],
)
def test_no_part_of_a_fork_is_read_by_passing_over_other_conversations(
    owner_conn: Connection, plan_of: Callable[[str], str], statement: str, given: dict[str, object]
) -> None:
    explained = owner_conn.exec_driver_sql(
        f"EXPLAIN {statement}", {"tenant": "acme", "stream": "conv_7", **given}
    )
    plan = "\n".join(explained.scalars())
    assert "Seq Scan on events" not in plan, plan
