"""Turns with function calls, transaction by transaction: recorded, forked, limited, erased, and settled before they go on."""

import json
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service import edit_flow, turn_flow
from service.domain.errors import InvalidInput
from service.domain.events import ItemId, TurnParsed
from service.domain.items import CallId, ItemKind, Part
from service.domain.limits import Limits
from service.domain.new_items import NewCall, NewItem, NewOutput, NewReasoning, Wants
from service.edit_flow import Edit
from service.erasure_flow import erase_conversation
from service.store import event_store, heads, keys
from tests.flows.fleet import ACME, NOW, Running, accept, add_engine, completed, move_alias, new_id, pin

ID = CallId("call_1")
SECRET = "the secret of K\u00f6ln"
WANTS = Wants(tools=json.dumps([{"name": SECRET}]), tool_choice='"auto"')
OUTPUT = NewOutput(call=ID, output=SECRET)


@pytest.fixture
def called(conn: Connection) -> Running:
    """Its last turn has answered with a call."""
    keys.create_tenant(conn, ACME)
    move_alias(conn, add_engine(conn, "a", "boot_a"))
    accepted = accept(conn, wants=WANTS)
    running = Running(conversation=accepted.conversation, turn=accepted.turn)
    event = completed(pin(conn, running))
    call = Part(kind=ItemKind.FUNCTION_CALL, text=json.dumps({"a": SECRET}), call=ID, function="f")
    parsed = TurnParsed(turn=event.turn, attempt=event.attempt, items=(ItemId("fc_1"),), parts=(call,))
    turn_flow.complete_turn(
        conn,
        tenant=ACME,
        conversation=running.conversation,
        refusal=None,
        completed=event,
        parsed=parsed,
        now=NOW,
    )
    return running


def edit(running: Running, **more: Any) -> Edit:
    return Edit(tenant=ACME, conversation=running.conversation, head=None, now=NOW, **more)


def test_what_was_asked_for_is_what_the_attempt_is_made_of(conn: Connection, called: Running) -> None:
    accept(conn, conversation=called.conversation, messages=(OUTPUT,), wants=WANTS)
    transcript = heads.load_transcript(conn, ACME, called.conversation)
    assert transcript.asked is not None
    assert transcript.asked.tools == WANTS.tools
    assert [item.kind for item in transcript.items] == [
        *(ItemKind.MESSAGE, ItemKind.FUNCTION_CALL, ItemKind.FUNCTION_CALL_OUTPUT)
    ]


def test_a_turn_is_not_taken_while_a_call_is_open(conn: Connection, called: Running) -> None:
    with pytest.raises(InvalidInput, match="No tool output found for function call call_1"):
        accept(conn, conversation=called.conversation)
    edit_flow.delete_item(conn, edit(called), ItemId("fc_1"))
    accept(conn, conversation=called.conversation)


def test_an_output_may_be_added_before_the_turn(conn: Connection, called: Running) -> None:
    edit_flow.add_items(conn, edit(called), [OUTPUT], new_id)
    with pytest.raises(InvalidInput, match="has its output already"):
        edit_flow.add_items(conn, edit(called), [OUTPUT], new_id)
    accept(conn, conversation=called.conversation)


def test_an_output_whose_call_was_deleted_is_named(conn: Connection, called: Running) -> None:
    [item] = edit_flow.add_items(conn, edit(called), [OUTPUT], new_id)
    edit_flow.delete_item(conn, edit(called), ItemId("fc_1"))
    with pytest.raises(InvalidInput, match=f"delete the item {item.id}"):
        accept(conn, conversation=called.conversation)


def test_a_fork_inherits_the_call_and_gives_its_own_output(conn: Connection, called: Running) -> None:
    accept(conn, conversation=called.conversation, messages=(OUTPUT,))
    fork = accept(conn, previous=called.turn, messages=(NewOutput(call=ID, output="another"),))
    assert fork.conversation != called.conversation
    state = event_store.load_conversation(conn, ACME, fork.conversation)
    assert [item.text for item in state.items] == ["hello", json.dumps({"a": SECRET}), "another"]


def test_a_fork_with_a_call_left_open_is_refused(conn: Connection, called: Running) -> None:
    accept(conn, conversation=called.conversation, messages=(OUTPUT,))
    with pytest.raises(InvalidInput, match="No tool output found"):
        accept(conn, previous=called.turn)


def test_items_of_every_kind_count_against_the_limit(conn: Connection, called: Running) -> None:
    brought: list[NewItem] = [
        NewReasoning(text="hm"),
        NewCall(call=CallId("call_2"), function="f", arguments="{}"),
        OUTPUT,
    ]
    with pytest.raises(InvalidInput, match="limit 'items' is 4"):
        edit_flow.add_items(conn, edit(called, limits=Limits(items=4)), brought, new_id)
    edit_flow.add_items(conn, edit(called, limits=Limits(items=5)), brought, new_id)


def test_erasure_takes_arguments_outputs_reasoning_and_tools(conn: Connection, called: Running) -> None:
    brought: list[NewItem] = [OUTPUT, NewReasoning(text=SECRET)]
    edit_flow.add_items(conn, edit(called), brought, new_id)
    kept = "SELECT string_agg(encode(content, 'escape'), '') FROM event_contents"
    assert conn.execute(text(kept)).scalar_one().count("the secret of") == 4
    erase_conversation(conn, tenant=ACME, conversation=called.conversation, by="test", reason="", now=NOW)
    assert conn.execute(text("SELECT count(*) FROM event_contents")).scalar_one() == 0
    assert (
        conn.execute(text("SELECT count(*) FROM events WHERE payload::text LIKE '%secret of%'")).scalar_one()
        == 0
    )
