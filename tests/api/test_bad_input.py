"""What clients get wrong: one clear line each, with the parameter's name, in OpenAI's envelope."""

from contextlib import closing
from http.client import HTTPConnection
from select import select
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from service.api.admin import CanaryBody
from service.api.body import parse
from service.api.errors import on_unexpected
from service.domain.canary import TOKENS
from service.domain.errors import InvalidInput
from tests.api.stack import Stack

CLOSED_S = 0.2
MESSAGE = {"role": "user", "content": "hello"}


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in answer.text
    return error


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "input", "missing_required_parameter"),
        ({"input": ""}, "input", "empty_input"),
        ({"input": "  \n"}, "input", "empty_input"),
        ({"input": []}, "input", "empty_input"),
        ({"input": 7}, "input", "invalid_value"),
        ({"input": [{"role": "system", "content": "x"}]}, "input", "empty_input"),
        ({"input": ["hello"]}, "input[0]", "invalid_value"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [MESSAGE, {"role": "user"}]}, "input[1].content", "invalid_value"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
            "unsupported_item",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]},
            "input[0].content[0].text",
            "invalid_value",
        ),
        ({"input": [{"type": "computer_call_output"}]}, "input[0].type", "unsupported_item"),
        ({"input": [MESSAGE | {"phase": "commentary"}]}, "input[0].phase", "unsupported_parameter"),
        ({"input": "x", "temperature": 3}, "temperature", "invalid_value"),
        ({"input": "x", "temperature": "1"}, "temperature", "invalid_value"),
        ({"input": "x", "top_p": -0.1}, "top_p", "invalid_value"),
        (
            {
                "input": [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "output_text", "text": "a", "annotations": []},
                            {"type": "output_text", "text": "b", "annotations": [{"type": "url_citation"}]},
                        ],
                    }
                ]
            },
            "input[0].content[1].annotations",
            "unsupported_parameter",
        ),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"input": "x", "max_output_tokens": 1.5}, "max_output_tokens", "invalid_value"),
        ({"input": "x", "max_output_tokens": True}, "max_output_tokens", "invalid_value"),
        ({"input": "x", "stream": "yes"}, "stream", "invalid_value"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata.a", "invalid_value"),
        ({"input": "x", "metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
        ({"input": "x", "on_upgrade": "never"}, "on_upgrade", "invalid_value"),
        ({"input": "x", "conversation": 7}, "conversation", "invalid_value"),
        ({"input": "x", "conversation": {"name": "a"}}, "conversation", "invalid_value"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
        ({"input": "x", "background": True, "store": False}, "background", "unsupported_parameter"),
        ({"input": "x", "store": False}, "store", "unsupported_parameter"),
        ({"input": "x", "truncation": "always"}, "truncation", "invalid_value"),
        ({"input": "x", "reasoning": {"effort": "low"}}, "reasoning", "unsupported_parameter"),
        ({"input": "x", "text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"input": "x", "colour": "red"}, "colour", "unknown_parameter"),
        (
            {"input": "x", "conversation": "conv_1", "previous_response_id": "resp_1"},
            "previous_response_id",
            "mutually_exclusive_parameters",
        ),
    ],
)
def test_each_wrong_parameter_is_named(
    shared_stack: Stack, body: dict[str, Any], param: str, code: str
) -> None:
    error = error_of(shared_stack.post(**body), 400)
    assert (error["param"], error["code"]) == (param, code)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("written", ["3", "3.0", "0.3e1", "30e-1"])
def test_a_whole_number_is_one_however_it_is_written(shared_stack: Stack, written: str) -> None:
    """As a schema's `integer` has it."""
    data = f'{{"input": "hello", "max_output_tokens": {written}, "temperature": 1.0}}'
    headers = {"content-type": "application/json"}
    answer = shared_stack.http.post("/v1/responses", content=data, headers=headers)
    assert answer.status_code == 200, answer.text
    assert '"max_output_tokens":3,' in answer.text


def test_so_are_those_of_a_list() -> None:
    answer = [*map(float, range(TOKENS))]
    body = parse(CanaryBody, {"prompt": [1.0, 2], "answer": answer, "compared": 1.0})
    assert repr((body.prompt, body.compared)) == "([1, 2], 1)"
    assert repr(body.answer) == repr([*range(TOKENS)])


@pytest.mark.parametrize("wrong", [1.5, "1", True])
def test_whatever_else_stands_in_their_place_is_named(wrong: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse(CanaryBody, {"prompt": [1, wrong], "answer": [*range(TOKENS)], "compared": 1})
    assert caught.value.param == "prompt[1]"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"[1]",
        b'{"input": "x"',
        b'{"temperature": NaN, "input": "x"}',
        b'{"temperature": 1e999, "input": "x"}',
        b"\xff\xfe",
        b'{"input": "\\ud800"}',
        b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"max_output_tokens": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_not_json_is_refused(shared_stack: Stack, data: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = shared_stack.http.post("/v1/responses", content=data, headers=headers)
    assert error_of(answer, 400)["code"] == "invalid_json"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_with_the_limit(shared_stack: Stack, chunked: bool) -> None:
    data = b'{"input": "' + b"x" * 5_000_000 + b'"}'
    content = iter([data[n : n + 65536] for n in range(0, len(data), 65536)]) if chunked else data
    headers = {"content-type": "application/json"}
    answer = shared_stack.http.post("/v1/responses", content=content, headers=headers)
    error = error_of(answer, 413)
    assert error["code"] == "body_too_large"
    assert str(shared_stack.settings.max_body_bytes) in error["message"]


def test_a_client_that_sends_all_before_it_reads_gets_to_read_the_limit(shared_stack: Stack) -> None:
    data = b'{"input": "' + b"x" * 30_000_000 + b'"}'
    headers = {"authorization": f"Bearer {shared_stack.secrets.tenant}", "content-type": "application/json"}
    connection = HTTPConnection(shared_stack.url.removeprefix("http://"))
    connection.request("POST", "/v1/responses", data, headers)
    answer = connection.getresponse()
    assert (answer.status, b"body_too_large" in answer.read()) == (413, True)
    connection.close()


def test_another_media_type_is_refused(shared_stack: Stack) -> None:
    answer = shared_stack.http.post("/v1/responses", data={"input": "hello"})
    assert error_of(answer, 415)["code"] == "unsupported_media_type"


def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(shared_stack: Stack) -> None:
    error = error_of(shared_stack.post(input="x", model="gpt-99"), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'production'" in error["message"]


def test_an_unknown_alias_of_a_new_conversation_is_not_found(shared_stack: Stack) -> None:
    error = error_of(shared_stack.http.post("/v1/conversations", json={"alias": "nope"}), 404)
    assert (error["param"], error["code"]) == ("alias", "model_not_found")


def test_an_unknown_conversation_is_not_found(shared_stack: Stack) -> None:
    error = error_of(shared_stack.post(input="x", conversation="conv_nope"), 404)
    assert error["param"] == "conversation"
    error_of(shared_stack.http.get("/v1/conversations/conv_nope"), 404)
    error_of(shared_stack.http.get("/v1/conversations/conv_nope/items"), 404)


def test_another_tenants_conversation_and_response_are_not_found(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    response = shared_stack.ask("hello", conversation=conversation)["id"]
    other = shared_stack.client(shared_stack.other_tenant())
    error_of(other.get(f"/v1/conversations/{conversation}"), 404)
    error_of(other.get(f"/v1/conversations/{conversation}/items"), 404)
    error_of(other.get(f"/v1/responses/{response}"), 404)
    error_of(other.post("/v1/responses", json={"input": "x", "conversation": conversation}), 404)
    error_of(other.post("/v1/responses", json={"input": "x", "previous_response_id": response}), 404)


def test_an_unknown_previous_response_is_named(shared_stack: Stack) -> None:
    error = error_of(shared_stack.post(input="x", previous_response_id="resp_nope"), 404)
    assert error["param"] == "previous_response_id"


def test_an_unknown_url_and_a_wrong_method_are_told_apart(shared_stack: Stack) -> None:
    assert error_of(shared_stack.http.get("/v1/nothing"), 404)["code"] == "unknown_url"
    answer = shared_stack.http.delete("/v1/responses")
    assert error_of(answer, 405)["code"] == "method_not_allowed"


def test_a_query_parameter_of_a_response_is_not_ignored(shared_stack: Stack) -> None:
    response = shared_stack.ask("hello")["id"]
    answer = shared_stack.http.get(f"/v1/responses/{response}", params={"format": "short"})
    assert error_of(answer, 400)["param"] == "format"


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("order=up", "order"), ("after=x", "after")]
)
def test_wrong_paging_is_named(shared_stack: Stack, query: str, param: str) -> None:
    conversation = shared_stack.conversation()
    answer = shared_stack.http.get(f"/v1/conversations/{conversation}/items?{query}")
    assert error_of(answer, 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": [{"role": "user"}]}, "items[0].content"),
        ({"items": [MESSAGE] * 21}, "items"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"on_upgrade": "x"}, "on_upgrade"),
        ({"name": "x"}, "name"),
    ],
)
def test_a_wrong_new_conversation_names_the_parameter(
    shared_stack: Stack, body: dict[str, Any], param: str
) -> None:
    assert error_of(shared_stack.http.post("/v1/conversations", json=body), 400)["param"] == param


def test_a_second_turn_while_one_is_open_is_locked_out(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 1
    conversation = stack.conversation()
    with stack.http.stream(
        "POST", "/v1/responses", json={"input": "one", "conversation": conversation, "stream": True}
    ) as first:
        error = error_of(stack.post(input="two", conversation=conversation), 400)
        engine.faults.release.set()
        first.read()
    assert error["code"] == "conversation_locked"


def test_every_answer_has_a_request_id_of_its_own(shared_stack: Stack) -> None:
    answers = [shared_stack.http.get("/healthz"), shared_stack.http.get("/v1/nothing"), shared_stack.post()]
    ids = {a.headers["x-request-id"] for a in answers}
    assert len(ids) == 3
    assert all(i.startswith("req_") for i in ids)


@pytest.mark.parametrize("field", ["model", "conversation", "previous_response_id"])
def test_an_id_with_nul_is_a_fault_of_the_request(shared_stack: Stack, field: str) -> None:
    answer = shared_stack.post(input="hello", **{field: "a\0b"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/responses/%00", "/v1/conversations/%00"])
def test_a_path_with_nul_is_a_fault_of_the_request(shared_stack: Stack, path: str) -> None:
    assert 400 <= shared_stack.http.get(path).status_code < 500


def test_the_connection_of_a_request_that_the_database_refused_serves_the_next_one(
    shared_stack: Stack,
) -> None:
    headers = {"authorization": f"Bearer {shared_stack.secrets.tenant}"}
    with closing(HTTPConnection(shared_stack.url.removeprefix("http://"))) as connection:
        connection.request("GET", "/v1/responses/%00", headers=headers)
        answer = connection.getresponse()
        assert (answer.status, answer.will_close) == (400, False)
        answer.read()
        wire = connection.sock
        assert wire is not None
        closed, _, _ = select([wire], [], [], CLOSED_S)
        assert not closed, "a client that sends its next request now would be told of a reset"


async def test_the_connection_of_a_failure_that_nobody_expected_is_told_to_close() -> None:
    answer = await on_unexpected(Request({"type": "http", "headers": []}), RuntimeError("no such thing"))
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")


@pytest.mark.parametrize("depth", [101, 500, 100_000])
def test_a_body_nested_too_deep_is_refused(shared_stack: Stack, depth: int) -> None:
    body = '{"input": ' + "[" * depth + "]" * depth + "}"
    headers = {"content-type": "application/json"}
    answer = shared_stack.http.post("/v1/responses", content=body, headers=headers)
    assert error_of(answer, 400)["code"] == "invalid_json"
