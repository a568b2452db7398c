"""Histories of earlier releases, each version of each event in its place, fold as they did when they were made."""

import json
from functools import reduce
from pathlib import Path
from typing import get_args

from service.domain.conversation import branch, evolve, fold
from service.domain.events import ConversationEvent, ConversationId, TenantId
from service.domain.items import ItemKind
from service.domain.turn import TurnState
from service.store.codec import EventRow, decode
from service.store.event_readers import READERS

FOLDER = Path(__file__).with_name("golden_histories")
TENANT, CHAT = TenantId("acme"), ConversationId("conv_01")


def history(name: str) -> list[EventRow]:
    return [
        EventRow(
            **row
            | {
                part: None if row[part] is None else bytes.fromhex(row[part])
                for part in ("content", "tokens")
            }
        )
        for row in map(json.loads, (FOLDER / name).read_text().splitlines())
    ]


def events(name: str, *, erased: bool = False) -> list[ConversationEvent]:
    found = [decode(row, erased=erased) for row in history(name)]
    assert all(isinstance(event, ConversationEvent) for event in found)
    return [event for event in found if isinstance(event, ConversationEvent)]


def test_a_history_of_the_first_schemas_folds_to_its_window() -> None:
    state = fold(TENANT, CHAT, events("first_schemas.jsonl"))
    assert state.version == 12
    assert [item.text for item in state.items] == ["Ol\u00e1 \x00 \ud800", "Paris.", "and?", "Lyon."]
    assert [item.text for item in state.withdrawn] == ["lost"]
    assert state.window == (1, 2, 3, 4, 5, 6)
    assert state.metadata == {"topic": "old"}
    assert [turn.state for turn in state.turns.values()] == [
        TurnState.COMPLETED,
        TurnState.FAILED,
        TurnState.COMPLETED,
    ]


def test_a_history_with_function_calls_folds_to_its_items() -> None:
    state = fold(TENANT, CHAT, events("function_calls.jsonl"))
    assert [(item.id, item.kind, item.call, item.text) for item in state.items] == [
        ("msg_1", ItemKind.MESSAGE, None, "Weather in K\u00f6ln?"),
        ("rs_1", ItemKind.REASONING, None, "A tool knows."),
        ("fc_1", ItemKind.FUNCTION_CALL, "call_1", '{"city": "K\u00f6ln"}'),
        ("fco_1", ItemKind.FUNCTION_CALL_OUTPUT, "call_1", "21 \u00b0C"),
        ("msg_a2", ItemKind.MESSAGE, None, "Warm."),
        ("fc_2", ItemKind.FUNCTION_CALL, "call_2", "{}"),
        ("fco_2", ItemKind.FUNCTION_CALL_OUTPUT, "call_2", "noon"),
        ("rs_2", ItemKind.REASONING, None, "it is noon"),
    ]
    assert state.window == (1, 2, 3, 4, 5, 6)
    assert state.covered_items == 5
    assert [item.text for item in state.withdrawn] == ["And now?"]


def test_an_erased_history_folds_to_what_happened_without_the_words() -> None:
    rows = [*events("erased.jsonl", erased=True)]
    state = fold(TENANT, CHAT, rows)
    assert state.erased is not None
    assert (state.items, state.window, state.last) == ((), (), None)
    assert len(state.turns) == 1


def test_a_history_with_everything_between_an_answer_and_its_deletion_folds_to_what_is_left() -> None:
    state = fold(TENANT, CHAT, events("second_schemas.jsonl"))
    assert (state.version, state.deleted) == (22, True)
    assert [item.id for item in state.items] == ["msg_01", "msg_02"]
    assert [item.id for item in state.withdrawn] == ["msg_03", "msg_04", "msg_05"]
    assert state.window == (0, 1, 2**32 - 1, 49152)
    assert state.dead == frozenset(), "the refused artifact was another revision's, and is good for that one"
    assert state.deleted_responses == {"resp_01"}
    [answered, *lost] = state.turns.values()
    assert (answered.state, answered.attempt, len(answered.refusals)) == (TurnState.COMPLETED, 2, 1)
    assert None not in (answered.rebuilt, answered.streamed, answered.scored)
    assert [turn.state for turn in lost] == [TurnState.FAILED, TurnState.FAILED]


def test_a_fork_folds_onto_the_history_that_it_was_made_of() -> None:
    parent = fold(TENANT, CHAT, events("second_schemas.jsonl")[:12])
    fork = reduce(evolve, events("forked.jsonl"), branch(parent, ConversationId("conv_02")))
    assert (fork.version, fork.alias, fork.deleted) == (2, "staging", False)
    assert (fork.items, fork.window) == (parent.items, (0, 1, 2**32 - 1, 49152))
    assert fork.fork is not None
    assert [(one.conversation, one.tokens) for one in fork.ancestors] == [("conv_01", 4)]


def test_a_history_with_labels_folds_to_what_its_turn_said_of_itself() -> None:
    turn = fold(TENANT, CHAT, events("labelled.jsonl")).open_turn
    assert turn is not None
    assert turn.asked is not None
    assert json.loads(turn.asked.labels) == {"safety_identifier": "somebody \x00"}


def test_a_history_with_rebuilds_folds_to_the_attempts_that_waited_for_one() -> None:
    answered, waiting = fold(TENANT, CHAT, events("rebuilt.jsonl")).turns.values()
    assert answered.rebuilds == ()
    assert [(pinned.attempt, pinned.rebuild) for pinned in waiting.rebuilds] == [(1, "rb_01"), (3, "rb_02")]


def test_every_version_of_every_event_stands_in_a_golden_file_and_a_conversations_in_a_history_that_is_folded() -> (
    None
):
    rows = {(row.type, row.schema_number) for path in FOLDER.glob("*.jsonl") for row in history(path.name)}
    alone = {tuple(path.stem.rsplit("_v", 1)) for path in Path(__file__).with_name("golden").glob("*.json")}
    assert {(name, str(number)) for name, number in READERS} <= alone
    of_conversations = {kind.name for kind in get_args(ConversationEvent)}
    assert {known for known in READERS if known[0] in of_conversations} == rows
