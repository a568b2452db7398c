"""What is known of a turn that was just accepted or answered, without reading it back: exactly what reading it back gives."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from service import turn_flow
from service.conversation_flow import Accepted, Begun, create_conversation, find_response
from service.domain.events import ConversationId, Role, TurnId, TurnScored
from service.domain.new_items import NewMessage, Wants
from service.domain.scores import TokenLogprob
from service.domain.turn import advance
from service.store import heads, keys
from service.turn_flow import Pinned
from tests.flows.fleet import ACME, NOW, accept, add_engine, completed, move_alias, new_id

TOOLS = Wants(tools='[{"name":"f"}]', tool_choice='"auto"', text_format="", parallel_tool_calls=True)


def begun_of(accepted: Accepted) -> Begun:
    assert accepted.begun is not None
    return accepted.begun


def planned(conn: Connection, accepted: Accepted) -> Pinned:
    """As the API has it done in the transaction of the acceptance."""
    made = turn_flow.plan_attempt(
        conn,
        tenant=ACME,
        conversation=accepted.conversation,
        turn=accepted.turn,
        avoid=frozenset(),
        rebuild_min_tokens=8,
        now=NOW,
        new_id=new_id,
        head=begun_of(accepted).head,
        transcript=begun_of(accepted).transcript,
    )
    assert isinstance(made, Pinned)
    return made


def opened(conn: Connection, *items: NewMessage) -> ConversationId:
    return create_conversation(
        conn,
        tenant=ACME,
        alias="production",
        on_upgrade=None,
        metadata={},
        messages=items,
        now=NOW,
        new_id=new_id,
    )


def finish(conn: Connection, accepted: Accepted, pinned: Pinned) -> None:
    turn_flow.complete_turn(
        conn,
        tenant=ACME,
        conversation=accepted.conversation,
        refusal=None,
        completed=completed(pinned),
        now=NOW,
    )


@pytest.fixture(autouse=True)
def _fleet(conn: Connection) -> None:
    keys.create_tenant(conn, ACME)
    move_alias(conn, add_engine(conn, "a", "boot_a"))


as_asked = pytest.mark.parametrize(
    "asked",
    [{}, {"instructions": "be brief"}, {"metadata": {"who": "me"}}, {"wants": TOOLS}],
    ids=["plain", "instructions", "metadata", "tools"],
)


@as_asked
def test_it_is_what_would_be_read_of_a_first_turn_a_later_one_and_one_on_a_fork(
    conn: Connection, asked: dict[str, Any]
) -> None:
    first = accept(conn, **asked)
    turns = [first]
    for where in ({"conversation": first.conversation}, {"previous": first.turn}):
        finish(conn, turns[-1], planned(conn, turns[-1]))
        turns.append(accept(conn, **asked, **where))
        begun = begun_of(turns[-1])
        assert begun.stored == find_response(conn, ACME, turns[-1].turn)
        assert begun.head == heads.load_head(conn, ACME, turns[-1].conversation)
    assert turns[1].conversation == first.conversation != turns[2].conversation


def test_it_is_what_would_be_read_of_a_conversation_that_begins_with_it(conn: Connection) -> None:
    accepted = accept(conn, instructions="be brief")
    begun = begun_of(accepted)
    assert begun.stored == find_response(conn, ACME, accepted.turn)
    assert begun.head == heads.load_head(conn, ACME, accepted.conversation)


def test_a_plan_made_with_the_acceptance_is_that_of_a_head_that_was_read(conn: Connection) -> None:
    first = accept(conn)
    finish(conn, first, planned(conn, first))
    accepted = accept(conn, conversation=first.conversation)
    pinned = planned(conn, accepted)
    assert pinned.head == heads.load_head(conn, ACME, accepted.conversation)
    stored = begun_of(accepted).stored
    assert replace(stored, turn=advance(stored.turn, pinned.pinned)) == find_response(
        conn, ACME, accepted.turn
    )


def test_a_plan_brings_what_the_prompt_is_made_of(conn: Connection) -> None:
    accepted = accept(conn)
    pinned = planned(conn, accepted)
    assert pinned.transcript is not None
    assert pinned.transcript == heads.load_transcript(conn, ACME, accepted.conversation)
    assert [item.text for item in pinned.transcript.items] == ["hello"]


@as_asked
@pytest.mark.parametrize("made_before", [False, True])
def test_what_the_first_prompt_is_made_of_is_known_without_reading_it(
    conn: Connection, asked: dict[str, Any], made_before: bool
) -> None:
    accepted = accept(conn, conversation=opened(conn) if made_before else None, **asked)
    known = begun_of(accepted).transcript
    assert known is not None
    assert known == heads.load_transcript(conn, ACME, accepted.conversation)
    assert planned(conn, accepted).transcript is known


def test_it_is_read_where_anything_was_said_before(conn: Connection) -> None:
    first = accept(conn)
    finish(conn, first, planned(conn, first))
    with_items = opened(conn, NewMessage(role=Role.USER, text="before"))
    for where in (
        {"conversation": with_items},
        {"conversation": first.conversation},
        {"previous": first.turn},
    ):
        accepted = accept(conn, **where)
        assert begun_of(accepted).transcript is None
        pinned = planned(conn, accepted)
        assert pinned.transcript == heads.load_transcript(conn, ACME, accepted.conversation)
        assert len(pinned.transcript.items) > 1
        finish(conn, accepted, pinned)


def test_the_words_of_an_answer_are_all_that_its_head_lacks(conn: Connection) -> None:
    accepted = accept(conn, metadata={"who": "me"}, wants=TOOLS)
    pinned = planned(conn, accepted)
    answer = completed(pinned)
    scored = TurnScored(
        turn=TurnId(accepted.turn), attempt=1, scores=(TokenLogprob(token="an", logprob=-0.5, top=()),)
    )
    turn = turn_flow.complete_turn(
        conn,
        tenant=ACME,
        conversation=accepted.conversation,
        refusal=None,
        completed=answer,
        now=NOW,
        scored=scored,
    )
    began = begun_of(accepted).stored
    known = replace(turn, started=began.turn.started, asked=began.turn.asked, scored=scored, completed=answer)
    assert replace(began, turn=known, completed_at=NOW) == find_response(conn, ACME, accepted.turn)
