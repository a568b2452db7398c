"""Chat completions and the list of models: the same routing without a conversation."""

import json
from typing import Any

import openai
import pytest
from sqlalchemy import func, select

from service.store.tables import events
from tests.api.stack import Stack, eventually, running_stack
from tests.engines.simulated_text import render

HELLO = [{"role": "user", "content": "hello"}]


def chat(stack: Stack, **body: Any) -> Any:
    return stack.http.post("/v1/chat/completions", json={"model": "production", "messages": HELLO} | body)


def stored(stack: Stack) -> int:
    with stack.database.begin() as conn:
        return conn.execute(select(func.count()).select_from(events)).scalar_one()


def test_an_answer_is_that_of_its_prompt_and_nothing_is_stored(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    before = stored(stack)
    said = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": "yes?", "refusal": None, "annotations": []},
        *HELLO,
    ]
    answer = chat(stack, messages=said)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    plain = [("system", "be brief"), ("user", "hi"), ("assistant", "yes?"), ("user", "hello")]
    assert engine.prompts == [tuple(render([{"role": r, "content": c} for r, c in plain]))]
    assert document["choices"][0]["message"]["content"] == engine.cold_text(engine.prompts[0])
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["system_fingerprint"] == answer.headers["x-everturn-revision"] == engine.revision
    assert document["usage"]["prompt_tokens"] == len(engine.prompts[0])
    assert stored(stack) == before
    assert engine.requests[0]["kv_transfer_params"].get("publish") is None


@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_those_that_the_engine_had(stack: Stack, *, stream: bool) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.evidence = {"local_tokens": 3}
    asked = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = chat(stack, **asked)
    told = answer.text.split("data: ")[-2] if stream else answer.text
    assert json.loads(told)["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}


def test_limits_of_the_answer_are_kept(shared_stack: Stack) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        document = chat(shared_stack, **{name: 2}).json()
        assert document["choices"][0]["finish_reason"] == "length"
        assert document["usage"]["completion_tokens"] == 2


def test_a_limit_under_its_old_name_is_not_passed_over_beside_another(shared_stack: Stack) -> None:
    refused = chat(shared_stack, max_tokens=2, max_completion_tokens=3)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "max_tokens")
    assert "'max_completion_tokens'" in error["message"]
    same = chat(shared_stack, max_tokens=2, max_completion_tokens=2)
    assert same.json()["usage"]["completion_tokens"] == 2


def test_the_alias_decides_which_revision_answers(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    other = stack.start_engine("b")
    stack.move_alias(other)
    assert chat(stack).headers["x-everturn-revision"] == other.revision


def test_the_official_client_completes_and_streams(shared_stack: Stack) -> None:
    client = shared_stack.openai
    whole = client.chat.completions.create(
        model="production", messages=[{"role": "user", "content": "hello"}]
    )
    chunks = list(
        client.chat.completions.create(
            model="production",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({c.id for c in chunks}) == 1


def test_another_engine_answers_where_one_dies_also_after_some_words(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True, boot="boot_0")
    stack.start_engine("a", boot="boot_1")
    engine.faults.die_after = 3
    with stack.http.stream(
        "POST", "/v1/chat/completions", json={"model": "production", "messages": HELLO, "stream": True}
    ) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines[:-1]]
    assert "".join(deltas) == engine.cold_text(engine.prompts[0])


def test_a_stream_that_nobody_can_go_on_with_ends_with_an_error(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.die_after = 3
    with pytest.raises(openai.APIError):
        list(
            stack.openai.chat.completions.create(
                model="production", messages=[{"role": "user", "content": "hello"}], stream=True
            )
        )


def test_a_stream_that_waits_for_its_first_word_is_kept_alive(database: str) -> None:
    with running_stack(database, heartbeat_s=0.2) as stack:
        engine = stack.start_engine("a", alias=True)
        engine.faults.hold_after = 0
        body = {"model": "production", "messages": HELLO, "stream": True}
        with stack.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.headers["x-everturn-revision"] == engine.revision
            lines = answer.iter_lines()
            assert '"content": ""' in next(lines)
            assert [next(lines), next(lines)] == ["", ": working"]
            engine.faults.release.set()
            *_, last = filter(None, lines)
        assert last == "data: [DONE]"


def test_whoever_leaves_the_stream_ends_the_work(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.pause_s = 0.2
    body = {"model": "production", "messages": HELLO, "stream": True}
    with stack.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    eventually(lambda: len(engine.left) == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_without_an_engine_the_answer_is_a_status_of_its_own(stack: Stack, stream: bool) -> None:
    stack.retire(stack.start_engine("a", alias=True))
    answer = chat(stack, stream=stream)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [*HELLO, HELLO[0] | {"name": "ann"}]}, "messages[1].name"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"seed": 1}, "seed"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"temperature": 3}, "temperature"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(
    shared_stack: Stack, body: dict[str, Any], param: str
) -> None:
    answer = chat(shared_stack, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_message_with_a_name_is_refused_with_the_way_out(shared_stack: Stack) -> None:
    error = chat(shared_stack, messages=[HELLO[0] | {"name": "ann"}]).json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert "'messages[0].content'" in error["message"]
    assert chat(shared_stack, messages=[HELLO[0] | {"name": None}]).status_code == 200


def test_an_unknown_model_is_404_and_the_known_ones_are_listed(shared_stack: Stack) -> None:
    assert chat(shared_stack, model="gpt-99").status_code == 404
    [model] = shared_stack.openai.models.list().data
    assert (model.id, model.object, model.owned_by) == ("production", "model", "everturn")
    assert model.model_extra is not None
    assert model.model_extra["revision"] == shared_stack.alias_revision()
    assert shared_stack.openai.models.retrieve("production") == model
    with pytest.raises(openai.NotFoundError):
        shared_stack.openai.models.retrieve("gpt-99")


def test_models_need_a_key(shared_stack: Stack) -> None:
    assert shared_stack.client("").get("/v1/models").status_code == 401
