"""Function calls and their outputs: folded to items, counted by the head, and settled before the next turn."""

from dataclasses import replace

import pytest

from service.domain import decide
from service.domain.conversation import Item, fold
from service.domain.errors import FenceLost, InvalidInput
from service.domain.events import (
    ConversationEvent,
    ConversationId,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemDeleted,
    ItemId,
    ReasoningAccepted,
    Role,
    TenantId,
    TurnAsked,
    TurnId,
    TurnParsed,
)
from service.domain.head import head_of
from service.domain.items import CallId, ItemKind, Part
from service.domain.transcript import Transcript, frame_of, transcribe
from service.domain.turn import check
from tests.domain.histories import (
    TURN,
    attempt_failed,
    completed,
    created,
    failed,
    folded,
    message,
    pinned,
    started,
)

ID = CallId("call_1")
TOOLS = '[{"type":"function","name":"f"}]'
ASKED = TurnAsked(turn=TURN, tools=TOOLS, tool_choice='"auto"', text_format="")
CALL = Part(kind=ItemKind.FUNCTION_CALL, text="{}", call=ID, function="f")
THOUGHT = Part(kind=ItemKind.REASONING, text="hm")
OUTPUT = FunctionCallOutputAccepted(item=ItemId("fco_1"), call=ID, output="out")


def parsed(*parts: Part, attempt: int = 1) -> TurnParsed:
    items = tuple(ItemId(f"part_{number}") for number in range(len(parts)))
    return TurnParsed(turn=TURN, attempt=attempt, items=items, parts=parts)


def called(*after: ConversationEvent) -> list[ConversationEvent]:
    """A turn that answered with reasoning and a call, and what came after it."""
    answer = completed(text="<think>hm</think>f()", frame=frame_of(ASKED))
    return [created(), message(), started(), ASKED, pinned(), parsed(THOUGHT, CALL), answer, *after]


def call_item(call: str = ID, item: str = "fc_1") -> Item:
    return Item(
        id=ItemId(item),
        role=Role.ASSISTANT,
        text="{}",
        kind=ItemKind.FUNCTION_CALL,
        call=CallId(call),
        function="f",
    )


def output_item(call: str = ID) -> Item:
    return Item(
        id=ItemId("fco_1"),
        role=Role.TOOL,
        text="out",
        kind=ItemKind.FUNCTION_CALL_OUTPUT,
        call=CallId(call),
    )


def test_an_answer_that_was_taken_apart_is_the_items_that_it_was_taken_apart_to() -> None:
    state = folded(called())
    assert [(item.id, item.kind, item.turn) for item in state.items[1:]] == [
        ("part_0", ItemKind.REASONING, TURN),
        ("part_1", ItemKind.FUNCTION_CALL, TURN),
    ]
    assert (state.covered_items, state.last and state.last.text) == (3, "<think>hm</think>f()")


def test_what_had_no_more_room_ended_in_its_last_item_and_the_transcript_knows_that_too() -> None:
    opening: list[ConversationEvent] = [created(), message(), started(), ASKED, pinned()]
    cut, whole = completed(finish_reason="length"), completed()
    histories: dict[tuple[bool, ...], list[ConversationEvent]] = {
        (False, True): [*opening, cut],
        (False, False): [*opening, whole],
        (False, False, True): [*opening, parsed(THOUGHT, CALL), cut],
        (False, False, False): [*opening, parsed(THOUGHT, CALL), whole],
    }
    for expected, history in histories.items():
        assert tuple(item.cut for item in folded(history).items) == expected
        assert tuple(item.cut for item in transcribe(history).items) == expected


def test_a_transcript_has_what_the_model_wrote_and_under_which_tools() -> None:
    transcript = Transcript.of(folded(called()))
    assert (transcript.answer, transcript.frame) == ("<think>hm</think>f()", frame_of(ASKED))
    assert transcript.asked is None
    second = TurnId("resp_2")
    asked = replace(ASKED, turn=second)
    running = folded(called(OUTPUT, started(second, ("fco_1",)), asked))
    assert Transcript.of(running).asked == asked


def test_the_frame_is_another_with_any_other_tool_or_instructions() -> None:
    assert frame_of(None) is None
    assert frame_of(replace(ASKED, tools="")) is None
    others = (
        replace(ASKED, tools=TOOLS.replace('"f"', '"g"')),
        replace(ASKED, instructions="be brief"),
        replace(ASKED, tools=TOOLS + "be brief"),
        replace(ASKED, tools="", instructions=TOOLS),
    )
    assert len({frame_of(asked) for asked in (ASKED, *others)}) == 5
    assert frame_of(replace(ASKED, tool_choice='"none"')) == frame_of(ASKED)


def test_what_clients_bring_becomes_items_of_their_kinds() -> None:
    brought = folded(
        [
            created(),
            FunctionCallAccepted(item=ItemId("fc_1"), call=ID, function="f", arguments="{}"),
            OUTPUT,
            ReasoningAccepted(item=ItemId("rs_1"), text="hm"),
        ]
    )
    assert brought.items == (
        call_item(),
        output_item(),
        Item(id=ItemId("rs_1"), role=Role.ASSISTANT, text="hm", kind=ItemKind.REASONING),
    )


def test_outputs_of_a_turn_that_failed_are_withdrawn_and_may_come_again() -> None:
    second = TurnId("resp_2")
    state = folded(called(OUTPUT, started(second, ("fco_1",)), failed(second)))
    assert [item.id for item in state.withdrawn] == ["fco_1"]
    decide.check_outputs(state.items, [output_item()], "input")


@pytest.mark.parametrize(
    ("after", "unsettled"),
    [
        ((), True),
        ((OUTPUT,), True),
        ((ItemDeleted(item=ItemId("part_1")),), True),
    ],
)
def test_a_head_knows_that_calls_may_be_open(after: tuple[ConversationEvent, ...], unsettled: bool) -> None:
    assert head_of(folded(called(*after))).unsettled is unsettled


def test_a_plain_answer_settles() -> None:
    second = TurnId("resp_2")
    answer = completed(second, item=ItemId("msg_2"))
    state = folded(called(OUTPUT, started(second, ("fco_1",)), pinned(turn=second), answer))
    assert not state.unsettled
    assert not folded([created(), message(), started(), pinned(), completed()]).unsettled


def test_the_parse_of_an_attempt_that_was_fenced_off_is_too_late() -> None:
    history: list[ConversationEvent] = [
        created(),
        message(),
        started(),
        pinned(),
        attempt_failed(),
        pinned(2),
    ]
    turn = fold(TenantId("acme"), ConversationId("conv_1"), history).turns[TURN]
    check(turn, parsed(CALL, attempt=2))
    with pytest.raises(FenceLost):
        check(turn, parsed(CALL, attempt=1))


def test_a_turn_may_be_asked_for_by_outputs_alone() -> None:
    state = folded(called())
    second = started(TurnId("resp_2"), ("fco_1",))
    assert decide.accept_turn(state, (OUTPUT,), second) == (OUTPUT, second)
    thought = ReasoningAccepted(item=ItemId("rs_1"), text="hm")
    with pytest.raises(InvalidInput, match="nothing to answer"):
        decide.accept_turn(state, (thought,), second)


@pytest.mark.parametrize(
    ("before", "added", "field"),
    [
        ((), (output_item(),), "input[0].call_id"),
        ((call_item(),), (output_item("call_2"),), "input[0].call_id"),
        ((call_item(),), (output_item(), output_item()), "input[1].call_id"),
        ((call_item(), output_item()), (output_item(),), "input[0].call_id"),
        ((call_item(),), (call_item(item="fc_2"),), "input[0].call_id"),
        ((), (output_item(), call_item()), "input[0].call_id"),
    ],
)
def test_an_output_needs_a_call_before_it_and_a_call_has_one(
    before: tuple[Item, ...], added: tuple[Item, ...], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        decide.check_outputs(before, added, "input")
    assert refused.value.param == field


def test_an_output_may_come_with_its_call() -> None:
    decide.check_outputs((), (call_item(), output_item()), "input")
    decide.check_settled((call_item(), output_item()))


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ((call_item(),), "No tool output found for function call call_1: .* delete the item fc_1"),
        ((output_item(),), "No tool call found .* call_1: delete the item fco_1"),
    ],
)
def test_what_is_not_settled_names_the_call_and_the_way_out(items: tuple[Item, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        decide.check_settled(items)
