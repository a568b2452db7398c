"""The wire to the engine: what is sent, and what each answer means."""

import json
from dataclasses import replace
from typing import Any

import pytest

from service.domain.artifact import ArtifactId, BootId
from service.domain.conversation import Item
from service.domain.errors import EngineFailed, InvalidInput, RevisionMismatch
from service.domain.events import ItemId, Role, Sampling, TenantId, TurnAsked, TurnId
from service.domain.evidence import TOLD_HEADER, TOLD_KEY, Evidence, KvRequest
from service.domain.revision import RevisionDigest
from service.domain.scores import Candidate, TokenLogprob
from service.engine import protocol
from service.engine.protocol import PLAIN, Carried, Chunk, Done, GenerateSpec, Rendered, RenderMode

REVISION = RevisionDigest("rev_" + "a" * 64)
SPEC = GenerateSpec(
    prompt=(1, 2, 3),
    sampling=Sampling(max_output_tokens=9, temperature=0.5, top_p=0.9),
    kv=KvRequest(attempt="resp_1.2", tenant="acme", offer="kv_12345678", publish=ArtifactId("kv_87654321")),
    revision=REVISION,
    boot=BootId("boot_1"),
    cache_salt="salt",
)


def line(**choice: object) -> str:
    fields = {"token_ids": [], "text": "", "finish_reason": None, "logprobs": None} | choice
    return "data: " + json.dumps({"choices": [fields]})


def test_a_request_names_the_engine_that_it_is_meant_for() -> None:
    headers, body = protocol.build_generate(SPEC, stream=True)
    assert headers == {"x-everturn-revision": REVISION, "x-everturn-boot": "boot_1"}
    assert body["token_ids"] == [1, 2, 3]
    assert body["output_mode"] == "text"
    assert body["stream"] is True
    assert body["cache_salt"] == "salt"
    assert body["kv_transfer_params"]["everturn"]["offer"] == "kv_12345678"
    assert KvRequest.from_params(body["kv_transfer_params"]) == SPEC.kv


def test_without_a_limit_the_engine_goes_on_to_the_end_of_its_context() -> None:
    """By what vLLM does with a `max_tokens` of null; without the name it would take its own default."""
    free = replace(SPEC, sampling=replace(SPEC.sampling, max_output_tokens=None))
    _, body = protocol.build_generate(free, stream=True)
    assert body["sampling_params"]["max_tokens"] is None


def test_sampling_is_sent_whole_and_logprobs_only_when_asked_for() -> None:
    _, body = protocol.build_generate(SPEC, stream=False)
    sampling = body["sampling_params"]
    assert (sampling["max_tokens"], sampling["temperature"], sampling["top_p"]) == (9, 0.5, 0.9)
    assert "logprobs" not in sampling
    asking = replace(SPEC, sampling=replace(SPEC.sampling, top_logprobs=0))
    _, body = protocol.build_generate(asking, stream=False)
    assert body["sampling_params"]["logprobs"] == 0


def test_an_adapter_is_asked_for_by_its_name_at_the_engine_and_a_base_by_none() -> None:
    assert "model" not in protocol.build_generate(SPEC, stream=True)[1]
    assert protocol.build_generate(replace(SPEC, model="legal"), stream=True)[1]["model"] == "legal"
    assert "model" not in protocol.build_render((), None)
    assert protocol.build_render((), None, "legal")["model"] == "legal"


def test_top_p_of_zero_is_sent_as_the_least_that_the_engine_takes() -> None:
    greedy = replace(SPEC, sampling=replace(SPEC.sampling, top_p=0.0))
    assert protocol.build_generate(greedy, stream=True)[1]["sampling_params"]["top_p"] > 0


def test_attempts_of_one_turn_share_a_seed_and_turns_do_not() -> None:
    def seed(attempt: str) -> int:
        spec = replace(SPEC, kv=replace(SPEC.kv, attempt=attempt))
        sampled: int = protocol.build_generate(spec, stream=True)[1]["sampling_params"]["seed"]
        return sampled

    assert seed("resp_1.1") == seed("resp_1.2")
    assert seed("resp_1.1") != seed("resp_2.1")


def test_the_cache_salt_parts_tenants_and_revisions() -> None:
    other = RevisionDigest("rev_" + "b" * 64)
    salts = {
        protocol.cache_salt(revision, TenantId(tenant))
        for revision in (REVISION, other)
        for tenant in ("a", "b")
    }
    assert len(salts) == 4


def test_a_prompt_that_is_refused_within_a_stream_is_the_clients_to_mend() -> None:
    with pytest.raises(InvalidInput, match="longer than the maximum model length"):
        protocol.parse_chunk(
            'data: {"error": {"message": "longer than the maximum model length.", "code": 400}}'
        )
    with pytest.raises(EngineFailed, match="mid-stream"):
        protocol.parse_chunk('data: {"error": {"message": "out of memory", "code": 500}}')


def test_chunks_of_a_stream() -> None:
    assert protocol.parse_chunk(line(token_ids=[7], text="x")) == Chunk(
        token_ids=(7,), text="x", finish_reason=None
    )
    last = protocol.parse_chunk(line(token_ids=[8], finish_reason="stop"))
    assert isinstance(last, Chunk)
    assert last.finish_reason == "stop"
    assert protocol.parse_chunk("data: [DONE]") == Done()
    assert protocol.parse_chunk("") is None
    assert protocol.parse_chunk(": ping") is None
    assert protocol.parse_chunk('data: {"choices": [], "usage": {}}') is None


def test_logprobs_of_a_chunk() -> None:
    entry = {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "b", "logprob": -0.25}]}
    chunk = protocol.parse_chunk(line(token_ids=[7], logprobs={"content": [entry]}))
    assert isinstance(chunk, Chunk)
    assert chunk.logprobs == (TokenLogprob(token="a", logprob=-0.5, top=(Candidate("b", -0.25),)),)


@pytest.mark.parametrize(
    "data",
    [
        line(finish_reason="abort"),
        line(finish_reason="error"),
        line(finish_reason="abort", token_ids=[1, 2], text="half"),
        'data: {"error": {"message": "KV load failure"}}',
        "data: not json",
        "data: [1]",
    ],
)
def test_a_stream_that_gives_up_is_a_failure_of_the_engine(data: str) -> None:
    with pytest.raises(EngineFailed):
        protocol.parse_chunk(data)


def test_a_render_says_which_messages_are_carried() -> None:
    items = [Item(id=ItemId("msg_1"), role=Role.USER, text="hi")]
    assert protocol.build_render(items, Carried(items=1, last_token=4)) == {
        "messages": [{"role": "user", "content": "hi"}],
        "carried": {"messages": 1, "last_token": 4},
    }
    assert protocol.build_render(items, None)["carried"] is None
    body = json.dumps({"token_ids": [1, 2], "mode": "delta", "reason": None}).encode()
    assert protocol.parse_render(200, body) == Rendered(token_ids=(1, 2), mode=RenderMode.DELTA, reason="")


@pytest.mark.parametrize("body", [b"{}", b"[]", b"x", b'{"token_ids": [1], "mode": "half", "reason": ""}'])
def test_a_render_that_cannot_be_read_is_a_failure_of_the_engine(body: bytes) -> None:
    with pytest.raises(EngineFailed):
        protocol.parse_render(200, body)


def test_evidence_survives_the_wire_and_an_unknown_attempt_is_none() -> None:
    evidence = Evidence(attempt="resp_1.1", boot=BootId("boot_1"), revision=REVISION, prompt_tokens=3)
    assert protocol.parse_evidence(200, json.dumps(evidence.to_json()).encode()) == evidence
    assert protocol.parse_evidence(404, b"{}") is None
    with pytest.raises(EngineFailed):
        protocol.parse_evidence(200, b'{"attempt": 1}')


def test_a_conflict_is_another_revision_with_its_fields() -> None:
    error = {"type": "revision_mismatch", "wanted": "w", "measured": "m", "differing_fields": ["weights"]}
    mismatch = protocol.failure(409, json.dumps({"error": error}).encode())
    assert mismatch == RevisionMismatch("w", "m", ("weights",))


@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidInput), (422, InvalidInput), (500, EngineFailed), (503, EngineFailed)]
)
def test_whose_fault_a_refused_request_is(status: int, kind: type[Exception]) -> None:
    failed = protocol.failure(status, b'{"error": {"message": "too long."}}')
    assert type(failed) is kind
    assert "too long" in str(failed)
    assert type(protocol.failure(status, b"<html>")) is kind


def test_an_answer_without_choices_is_a_failure() -> None:
    with pytest.raises(EngineFailed):
        protocol.parse_answer(200, b'{"choices": []}')
    assert protocol.parse_answer(200, line(token_ids=[1])[6:].encode()).token_ids == (1,)


def test_what_our_middleware_refuses_of_a_request_is_named_as_its_client_knows_it() -> None:
    error = {"type": "invalid_request", "message": "no such thing", "param": "text.format.schema"}
    failed = protocol.failure(400, json.dumps({"error": error}).encode())
    assert isinstance(failed, InvalidInput)
    assert (failed.param, failed.code) == ("text.format.schema", "invalid_json_schema")
    other = protocol.failure(400, json.dumps({"error": error | {"param": "messages"}}).encode())
    assert isinstance(other, InvalidInput)
    assert (other.param, other.code) == ("input", "invalid_prompt")


def test_an_answer_taken_apart_comes_over_the_wire() -> None:
    found = {
        "reasoning": "hm",
        "reasoning_tokens": 1,
        "content": None,
        "calls": [{"name": "f", "arguments": "{}"}],
    }
    parsed = protocol.parse_parsed(200, json.dumps(found).encode())
    assert (parsed.reasoning, parsed.content, parsed.calls) == ("hm", "", (("f", "{}"),))
    with pytest.raises(EngineFailed):
        protocol.parse_parsed(200, b'{"content": ""}')


def test_the_form_of_an_answer_reaches_the_engine() -> None:
    answer = {"token_ids": [1], "mode": "full", "reason": ""}
    form = {"structured_outputs": {"json": "{}"}, "skip_special_tokens": False, "parsed": True}
    rendered = protocol.parse_render(200, json.dumps(answer | {"form": form}).encode())
    _, body = protocol.build_generate(replace(SPEC, form=rendered.form), stream=True)
    assert body["sampling_params"]["structured_outputs"] == {"json": "{}"}
    assert body["sampling_params"]["skip_special_tokens"] is False
    assert "structured_outputs" not in protocol.build_generate(SPEC, stream=True)[1]["sampling_params"]


def test_how_long_a_prompt_may_be_comes_with_it_except_of_an_engine_of_an_older_release() -> None:
    answer = {"token_ids": [1], "mode": "full", "reason": ""}
    assert protocol.parse_render(200, json.dumps(answer).encode()).max_model_len is None
    told = answer | {"max_model_len": 4096}
    assert protocol.parse_render(200, json.dumps(told).encode()).max_model_len == 4096


def test_whether_it_begins_in_reasoning_reaches_the_engine_where_its_form_is_held_to() -> None:
    form = {"structured_outputs": {"json": "{}"}, "skip_special_tokens": False, "parsed": True}
    answer = {"token_ids": [1], "mode": "full", "reason": "", "form": form}
    for ended, sent in ((False, {"reasoning_ended": False}), (True, {"reasoning_ended": True}), (None, {})):
        rendered = protocol.parse_render(200, json.dumps(answer | {"reasoning_ended": ended}).encode())
        _, body = protocol.build_generate(replace(SPEC, form=rendered.form), stream=True)
        assert {key: body[key] for key in body if key == "reasoning_ended"} == sent


TOLD = [["message", None, "Let me"], ["function_call", "get", "{"], ["function_call", None, "}"]]


def test_what_a_chunk_tells_is_read_with_it() -> None:
    document = json.loads(line(text="x").removeprefix("data: ")) | {TOLD_KEY: TOLD}
    chunk = protocol.parse_chunk(f"data: {json.dumps(document)}")
    assert isinstance(chunk, Chunk)
    assert [[one.kind.value, one.function, one.text] for one in chunk.told] == TOLD


@pytest.mark.parametrize("told", [[["poem", None, "x"]], [["message", "x"]], [7]])
def test_telling_that_cannot_be_read_is_a_failure_of_the_engine(told: list[Any]) -> None:
    document = json.loads(line(text="x").removeprefix("data: ")) | {TOLD_KEY: told}
    with pytest.raises(EngineFailed, match="telling"):
        protocol.parse_chunk(f"data: {json.dumps(document)}")


def test_only_a_stream_of_what_has_to_be_taken_apart_is_asked_to_be_told() -> None:
    asked = TurnAsked(
        turn=TurnId("resp_1"),
        tools='[{"type": "function", "name": "get"}]',
        tool_choice='"auto"',
        text_format="",
    )
    parsed = replace(SPEC, form=replace(PLAIN, parsed=True), asked=asked)
    headers, body = protocol.build_generate(parsed, stream=True)
    assert headers[TOLD_HEADER] == "1"
    assert body[TOLD_KEY] == {
        "tools": [{"type": "function", "function": {"name": "get"}}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    }
    assert protocol.build_generate(replace(parsed, asked=None), stream=True)[1][TOLD_KEY] == {}
    for plain in (protocol.build_generate(parsed, stream=False), protocol.build_generate(SPEC, stream=True)):
        assert TOLD_HEADER not in plain[0]
        assert TOLD_KEY not in plain[1]
