"""What waits for an answer is what was said after the model's last words, if any of it asks for one."""

import pytest

from service.domain.conversation import Item
from service.domain.decide import accept_turn
from service.domain.errors import InvalidInput
from service.domain.events import ItemId, Role
from service.domain.items import CallId, ItemKind
from service.domain.unanswered import unanswered, waits_for_answer
from tests.domain.histories import created, folded, message, started


def said(*roles: Role, text: str = "Hello") -> list[Item]:
    return [Item(id=ItemId(f"msg_{n}"), role=role, text=text) for n, role in enumerate(roles)]


OUTPUT = Item(
    id=ItemId("fco_1"), role=Role.TOOL, text="", kind=ItemKind.FUNCTION_CALL_OUTPUT, call=CallId("c")
)


def test_it_is_all_that_follows_the_models_last_words() -> None:
    items = said(Role.USER, Role.ASSISTANT, Role.USER, Role.SYSTEM)
    assert unanswered(items) == tuple(items[2:])
    assert unanswered(items[:2]) == unanswered([]) == ()
    assert unanswered(items[:1]) == tuple(items[:1])


@pytest.mark.parametrize(
    ("items", "waits"),
    [
        ([], False),
        (said(Role.USER), True),
        (said(Role.USER, Role.SYSTEM), True),
        (said(Role.SYSTEM), False),
        (said(Role.USER, text=" \n"), False),
        (said(Role.USER, Role.ASSISTANT), False),
        (said(Role.USER, Role.ASSISTANT, Role.SYSTEM), False),
        ([*said(Role.USER, Role.ASSISTANT), OUTPUT], True),
    ],
)
def test_words_of_a_user_and_outputs_wait_and_nothing_else(items: list[Item], *, waits: bool) -> None:
    assert waits_for_answer(items) is waits


def test_a_turn_that_brings_nothing_answers_what_waits() -> None:
    begun = started(items=())
    assert accept_turn(folded([created()]), [], begun, before=said(Role.USER)) == (begun,)
    told = message(role=Role.SYSTEM)
    assert accept_turn(folded([created()]), [told], started(), before=said(Role.USER)) == (told, started())


@pytest.mark.parametrize(
    ("brought", "code"), [([], "missing_required_parameter"), ([message(role=Role.SYSTEM)], "empty_input")]
)
def test_where_nothing_waits_it_is_refused(brought: list[object], code: str) -> None:
    answered = said(Role.USER, Role.ASSISTANT)
    with pytest.raises(InvalidInput, match="nothing to answer") as refused:
        accept_turn(folded([created()]), brought, started(), before=answered)  # type: ignore[arg-type]  # events
    assert (refused.value.param, refused.value.code) == ("input", code)


def test_what_is_brought_after_an_answer_that_is_brought_answers_nothing() -> None:
    brought = [message(role=Role.ASSISTANT)]
    with pytest.raises(InvalidInput):
        accept_turn(folded([created()]), brought, started(), before=said(Role.USER))
    assert accept_turn(folded([created()]), [message(), *brought], started())
