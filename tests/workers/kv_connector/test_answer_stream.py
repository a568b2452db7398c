"""What vLLM's parsers say of an answer while it comes is told once, in its order, and never what could be taken back."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from service.domain.evidence import TOLD_KEY
from workers.kv_connector.answer_stream import AnswerStream, Event, Fragment, ToldBeside


class Parser:
    """Says what it was given to say, one after the other."""

    def __init__(self, *says: Any, is_one: bool = True) -> None:
        self._engine_based = is_one
        self.says = list(says)
        self.given: list[tuple[str, list[int], bool]] = []

    def parse_delta(
        self, text: str, ids: list[int], _request: Any, _prompt: list[int], *, finished: bool
    ) -> Any:
        self.given.append((text, ids, finished))
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


def delta(content: str | None = None, reasoning: str | None = None, *calls: Any) -> Any:
    return SimpleNamespace(content=content, reasoning=reasoning, tool_calls=list(calls))


def call(index: int, name: str | None = None, arguments: str | None = None) -> Any:
    return SimpleNamespace(index=index, function=SimpleNamespace(name=name, arguments=arguments))


def told(*says: Any) -> list[list[Fragment]]:
    stream = AnswerStream(Parser(*says), None, (), {})
    return [stream.add("x", [1], finished=False) for _ in says]


def test_reasoning_words_and_calls_are_told_as_they_come() -> None:
    assert told(
        delta(None, "hm"),
        delta("Let me"),
        None,
        delta(" see.", None, call(0, "get", "{")),
        delta(None, None, call(0, None, "}"), call(1, "put")),
        delta(None, None, call(1, None, "")),
    ) == [
        [("reasoning", None, "hm")],
        [("message", None, "Let me")],
        [],
        [("message", None, " see."), ("function_call", "get", "{")],
        [("function_call", None, "}"), ("function_call", "put", "")],
        [],
    ]


def test_what_is_blank_waits_for_a_word_and_goes_where_none_comes() -> None:
    assert told(delta("\n"), delta("\n"), delta("Hi")) == [[], [], [("message", None, "\n\nHi")]]
    assert told(delta("\n"), delta(None, None, call(0, "get"))) == [[], [("function_call", "get", "")]]
    assert told(delta(None, "\n"), delta("Hi")) == [[], [("message", None, "Hi")]]
    assert told(delta("Hi"), delta("\n")) == [[("message", None, "Hi")], [("message", None, "\n")]]


@pytest.mark.parametrize(
    "after",
    [
        RuntimeError("cannot stream"),
        delta(None, None, call(2, None, "{}")),
        delta(None, None, call(0, None, "{}")),
        delta(None, None, call(1, "again")),
    ],
    ids=["fails", "arguments of no call", "goes back", "begins again"],
)
def test_after_what_cannot_be_told_in_order_nothing_more_is_told(after: Any) -> None:
    begun = delta(None, None, call(0, "get"), call(1, "put"))
    assert told(begun, after, delta("words"))[1:] == [[], []]


def test_after_as_many_calls_as_are_wanted_nothing_more_is_told() -> None:
    says = (
        delta("Hi", None, call(0, "get", "{")),
        delta(None, None, call(0, None, "}"), call(1, "put", "{}")),
        delta("words", None, call(2, "del", "{}")),
    )
    stream = AnswerStream(Parser(*says), None, (), {}, most_calls=1)
    assert [stream.add("x", [1], finished=False) for _ in says] == [
        [("message", None, "Hi"), ("function_call", "get", "{")],
        [("function_call", None, "}")],
        [],
    ]


def test_arguments_that_come_after_other_words_are_not_told() -> None:
    begun = delta(None, None, call(0, "get"))
    assert told(begun, delta("words"), delta(None, None, call(0, None, "{}")))[2] == []


def test_of_a_parser_with_two_ways_of_reading_only_what_the_model_wrote_is_told() -> None:
    says = (
        delta("Hi"),
        delta(None, None, call(0, "get", '{"a')),
        delta(None, None, call(0, None, '": 1}')),
        delta(None, None, call(0, None, '"}')),
        delta("words"),
    )
    stream = AnswerStream(Parser(*says, is_one=False), None, (), {})
    written = ("Hi", '<call>get {"a', '": 1}', "", "words")
    assert [stream.add(text, [1], finished=False) for text in written] == [
        [("message", None, "Hi")],
        [("function_call", "get", '{"a')],
        [("function_call", None, '": 1}')],
        [],
        [],
    ]


def test_a_call_whose_arguments_are_not_what_the_model_wrote_is_told_without_them() -> None:
    stream = AnswerStream(Parser(delta(None, None, call(0, "get", "{}")), is_one=False), None, (), {})
    assert stream.add("<get>", [1], finished=False) == [("function_call", "get", "")]


def test_a_parser_sees_each_marker_by_itself() -> None:
    parser = Parser(*[None] * 6)
    stream = AnswerStream(parser, None, (), {1: "<think>", 2: "</think>", 3: "<eos>"})
    stream.add("<think>a b</think>", [1, 7, 8, 2], finished=False)
    stream.add("c", [9, 3], finished=True)
    stream.add("", [], finished=True)
    assert parser.given == [
        ("<think>", [1], False),
        ("a b", [7, 8], False),
        ("</think>", [2], False),
        ("c", [9, 3], True),
        ("", [], True),
    ]


def sent(*events: Event, answer: AnswerStream) -> list[bytes]:
    bodies: list[bytes] = []

    async def send(event: Event) -> None:
        if event["type"] == "http.response.body":
            bodies.append(event["body"])

    async def all_of_them() -> None:
        beside = ToldBeside(send, answer)
        for event in events:
            await beside(event)

    asyncio.run(all_of_them())
    return bodies


def start(kind: bytes) -> Event:
    return {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}


def body(data: bytes, *, more: bool = True) -> Event:
    return {"type": "http.response.body", "body": data, "more_body": more}


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": [7], "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


def test_each_chunk_has_what_it_tells_however_the_stream_is_cut_on_its_way() -> None:
    parser = Parser(delta("Hi"), None)
    whole = chunk("Hi") + chunk("", "stop") + b"data: [DONE]\n\n"
    bodies = sent(
        start(b"text/event-stream; charset=utf-8"),
        *(body(whole[place : place + 7]) for place in range(0, len(whole), 7)),
        body(b"", more=False),
        answer=AnswerStream(parser, None, (), {}),
    )
    first, second, done = b"".join(bodies).decode().strip().split("\n\n")
    assert json.loads(first.removeprefix("data: "))[TOLD_KEY] == [["message", None, "Hi"]]
    assert second == chunk("", "stop").decode().strip()
    assert done == "data: [DONE]"
    assert parser.given == [("Hi", [7], False), ("", [7], True)]


def test_an_answer_that_is_no_stream_goes_on_as_it_is() -> None:
    refused = b'{"error": {"message": "too long"}}'
    answer = AnswerStream(Parser(), None, (), {})
    assert sent(start(b"application/json"), body(refused, more=False), answer=answer) == [refused]


def test_a_fault_in_the_stream_goes_on_as_it_is() -> None:
    fault = b'data: {"error": {"message": "gave up", "code": 500}}\n\n'
    answer = AnswerStream(Parser(), None, (), {})
    assert sent(start(b"text/event-stream"), body(fault, more=False), answer=answer) == [fault]
