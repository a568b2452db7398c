"""What is stored of an answer is what its whole was parsed to, and never other than what a stream of it was told."""

import pytest

from service.api.answer_parts import parts_of
from service.domain.events import ItemId, TurnId
from service.domain.items import ItemKind, Part
from service.domain.telling import line_of
from service.engine.protocol import Parsed

WRITTEN = 'Let me see.<call>get {"city":"Rome"}</call>'


def message(text: str) -> Part:
    return Part(kind=ItemKind.MESSAGE, text=text)


def reasoning(text: str) -> Part:
    return Part(kind=ItemKind.REASONING, text=text)


def call(arguments: str, function: str = "get") -> Part:
    return Part(kind=ItemKind.FUNCTION_CALL, text=arguments, function=function)


def parsed(content: str = "", *calls: tuple[str, str], reasoned: str = "") -> Parsed:
    return Parsed(reasoning=reasoned, reasoning_tokens=3, content=content, calls=calls)


def stored(found: Parsed, *told: Part, written: str = WRITTEN) -> list[tuple[str, str]]:
    made = parts_of(TurnId("resp_1"), 1, ItemId("msg_1"), found, written=written, told=line_of(told))
    assert line_of(made.parts).startswith(line_of(told))
    assert len(set(made.items)) == len(made.items)
    assert all((part.call is None) == (part.kind is not ItemKind.FUNCTION_CALL) for part in made.parts)
    return [(part.kind.value, part.text) for part in made.parts]


FOUND = parsed("Let me see.", ("get", '{"city": "Rome"}'))


@pytest.mark.parametrize(
    "told",
    [
        (),
        (message("Let"),),
        (message("Let me see."),),
        (message("Let me see."), call("")),
        (message("Let me see."), call('{"city": "R')),
    ],
    ids=len,
)
def test_what_was_told_is_gone_on_from_with_what_was_found(told: tuple[Part, ...]) -> None:
    assert stored(FOUND, *told) == [("message", "Let me see."), ("function_call", '{"city": "Rome"}')]


def test_arguments_stay_as_they_were_told_where_only_their_spelling_differs() -> None:
    told = (message("Let me see."), call('{"city":"Rome"}'))
    assert stored(FOUND, *told)[1] == ("function_call", '{"city":"Rome"}')


def test_blanks_around_words_stay_as_they_were_told() -> None:
    told = (reasoning("hm\n"), message("Let me see.\n"))
    found = parsed("Let me see.", ("get", "{}"), reasoned="hm")
    assert stored(found, *told) == [
        ("reasoning", "hm\n"),
        ("message", "Let me see.\n"),
        ("function_call", "{}"),
    ]


def test_arguments_whose_end_was_not_told_get_it_as_the_model_wrote_it() -> None:
    told = (message("Let me see."), call('{"city":"Ro'))
    assert stored(FOUND, *told)[1] == ("function_call", '{"city":"Rome"}')


def test_a_call_that_was_cut_short_stays_the_call_that_was_told() -> None:
    written = 'Let me see.<call>get {"city":"Ro'
    told = (message("Let me see."), call('{"city":"Ro'))
    assert stored(parsed(written), *told, written=written) == [
        ("message", "Let me see."),
        ("function_call", '{"city":"Ro'),
    ]


@pytest.mark.parametrize(
    "told",
    [
        (message("Other"),),
        (call("{}", "put"),),
        (reasoning("Let me see."),),
        (message("Let me see."), call('{"city": "Oslo"}')),
        (message("Let me see."), call("no JSON")),
        (message("Let me see."), call('{"city": "Rome"}'), message("more")),
        (message("Let"), call('{"city": "Rome"}')),
    ],
    ids=str,
)
def test_where_the_parsers_disagree_it_is_what_was_told(told: tuple[Part, ...]) -> None:
    assert stored(FOUND, *told) == [(part.kind.value, part.text) for part in told]


def test_what_was_not_told_is_what_was_found() -> None:
    assert stored(parsed("Hi", reasoned="hm")) == [("reasoning", "hm"), ("message", "Hi")]
    assert stored(parsed(), written="raw") == [("message", "raw")]
    assert stored(parsed(), written="") == [("message", "")]
    assert stored(parsed(" ", ("get", "{}"))) == [("message", " "), ("function_call", "{}")]
