"""Which window a prompt goes on from, and how its last answer stands in it."""

from dataclasses import replace

import pytest

from service.api.prompt import carried_window
from service.domain.conversation import Item
from service.domain.events import ItemId, Role, TurnAsked, TurnId
from service.domain.items import CallId, ItemKind
from service.domain.transcript import Transcript, frame_of
from service.engine.protocol import Carried

ASKED = TurnAsked(turn=TurnId("resp_2"), tools="[1]", tool_choice='"auto"', text_format="")
USER = Item(id=ItemId("msg_1"), role=Role.USER, text="hi")
SAID = Item(id=ItemId("msg_2"), role=Role.ASSISTANT, text="yes")
CALL = Item(
    id=ItemId("fc_1"),
    role=Role.ASSISTANT,
    text="{}",
    kind=ItemKind.FUNCTION_CALL,
    call=CallId("call_1"),
    function="f",
)
PLAIN = Transcript(items=(USER, SAID), window=(1, 2, 3), covered=2, last=TurnId("resp_1"), answer="yes")


def test_a_plain_answer_is_its_message() -> None:
    assert carried_window(PLAIN) == Carried(items=2, last_token=3)
    assert carried_window(Transcript()) is None


@pytest.mark.parametrize(
    "items",
    [(USER, CALL), (USER, replace(SAID, text="I look.")), (USER, replace(SAID, text="")), (USER, SAID, CALL)],
)
def test_an_answer_that_was_taken_apart_goes_along_as_it_was_written(items: tuple[Item, ...]) -> None:
    taken_apart = replace(PLAIN, items=items, covered=len(items), answer="I look. f()")
    assert carried_window(taken_apart) == Carried(items=len(items), last_token=3, answer="I look. f()")


def test_a_window_is_none_under_other_tools() -> None:
    framed = replace(PLAIN, frame=frame_of(ASKED))
    assert carried_window(framed) is None
    assert carried_window(replace(PLAIN, asked=ASKED)) is None
    assert carried_window(replace(framed, asked=replace(ASKED, tool_choice='"none"'))) is not None
