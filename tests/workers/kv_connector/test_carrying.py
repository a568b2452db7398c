"""KV that one engine publishes and another engine of the same revision reads: exactly what a cold prefill computes."""

import asyncio
from pathlib import Path

import httpx
import pytest

from service.domain.artifact import MadeBy
from tests.engines.real import BLOCK, TENANT, EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine


def test_prefilled_kv_read_by_another_engine_equals_a_cold_prefill_bit_for_bit(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids, handle = prompt(1), new_handle()
    made = v12_engine.generate(ids, publish=handle, max_tokens=1)
    read = second_v12_engine.generate(ids, offer=handle)
    cold = second_v12_engine.cold(ids)
    assert made.known.published is not None
    assert made.known.published.made_by is MadeBy.PREFILL
    assert read.known.loaded is not None
    assert read.known.loaded.tokens == 192
    assert read.known.loaded.producer == v12_engine.boot
    assert cold.known.loaded is None
    assert (read.tokens, read.logprobs) == (cold.tokens, cold.logprobs)


def test_a_longer_prompt_reads_what_it_shares(v12_engine: RealEngine, second_v12_engine: RealEngine) -> None:
    ids, handle = prompt(2), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1)
    longer = ids[:150] + prompt(3)
    read = second_v12_engine.generate(longer, offer=handle)
    assert read.known.loaded is not None
    assert read.known.loaded.tokens == 128
    assert read.tokens == second_v12_engine.cold(longer).tokens


def test_two_tokens_are_always_left_to_compute(v12_engine: RealEngine, second_v12_engine: RealEngine) -> None:
    ids, handle = prompt(4, 129), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1)
    read = second_v12_engine.generate(ids, offer=handle)
    assert read.known.loaded is not None
    assert read.known.loaded.tokens == 96
    assert read.logprobs == second_v12_engine.cold(ids).logprobs


def test_generated_tokens_are_carried_too_and_said_to_be(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids, handle = prompt(5, 100), new_handle()
    made = v12_engine.generate(ids, publish=handle, max_tokens=61, ignore_eos=True)
    assert made.known.published is not None
    # 161 tokens are known, and the KV of the last is not computed.
    assert made.known.published.tokens == 160
    assert made.known.published.made_by is MadeBy.DECODE
    following = ids + made.tokens + prompt(6, 20)
    read = second_v12_engine.generate(following, offer=handle)
    assert read.known.loaded is not None
    assert read.known.loaded.tokens == 160
    cold = second_v12_engine.cold(following)
    assert read.logprobs == pytest.approx(cold.logprobs, abs=1e-3)


def test_an_artifact_completes_what_the_engine_has_of_its_own(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids, handle = prompt(7), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1)
    second_v12_engine.generate(ids[:70])
    read = second_v12_engine.generate(ids, offer=handle)
    assert read.known.local_tokens == 64
    assert read.known.loaded is not None
    assert read.known.loaded.tokens == 128
    assert read.logprobs == second_v12_engine.cold(ids).logprobs


def test_nothing_is_loaded_that_the_engine_has_already(v12_engine: RealEngine) -> None:
    ids, handle = prompt(8), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1)
    again = v12_engine.generate(ids, offer=handle)
    assert again.known.local_tokens == 192
    assert again.known.loaded is None
    assert again.known.refusal is None


def test_a_second_publication_of_the_same_tokens_shares_their_blocks(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    ids, first, second = prompt(9), new_handle(), new_handle()
    v12_engine.generate(ids, publish=first, max_tokens=1)
    before = sorted(path for path in (v12_engine.store / "blocks").rglob("*") if path.is_file())
    made = second_v12_engine.generate(ids, publish=second, max_tokens=1)
    after = sorted(path for path in (v12_engine.store / "blocks").rglob("*") if path.is_file())
    assert made.known.published is not None
    assert before == after


def test_a_taken_handle_is_never_overwritten(v12_engine: RealEngine) -> None:
    handle = new_handle()
    v12_engine.generate(prompt(10), publish=handle, max_tokens=1)
    again = v12_engine.generate(prompt(11), publish=handle, max_tokens=1)
    assert again.known.published is None
    assert again.known.publish_failure == f"the handle {handle} is taken"


def test_less_than_a_block_is_not_published(v12_engine: RealEngine) -> None:
    reply = v12_engine.generate(prompt(12, BLOCK - 1), publish=new_handle(), max_tokens=1)
    assert reply.known.publish_failure == "it has no whole block of computed tokens"


def test_an_aborted_request_publishes_nothing(v12_engine: RealEngine) -> None:
    handle, attempt = new_handle(), "att_aborted"
    body = {
        "token_ids": prompt(13),
        "sampling_params": {"max_tokens": 3000, "temperature": 0, "ignore_eos": True},
        "stream": True,
        "kv_transfer_params": {"everturn": {"attempt": attempt, "tenant": TENANT, "publish": handle}},
    }
    with v12_engine.http.stream("POST", f"{v12_engine.url}/inference/v1/generate", json=body) as stream:
        assert next(stream.iter_lines()).startswith("data:")
    evidence = v12_engine.evidence(attempt, wait_s=10)
    assert evidence is not None
    assert evidence.published is None
    assert evidence.publish_failure == "the request ended as FINISHED_ABORTED"
    refused = v12_engine.generate(prompt(13), offer=handle).known.refusal
    assert refused is not None
    assert refused.reason == "manifest_missing"


def test_a_stream_leaves_the_same_evidence(v12_engine: RealEngine, second_v12_engine: RealEngine) -> None:
    ids, handle, attempt = prompt(14), new_handle(), "att_streamed"
    v12_engine.generate(ids, publish=handle, max_tokens=1)
    whole = second_v12_engine.generate(ids, offer=handle, cache_salt="whole").known.loaded
    body = {
        "token_ids": ids,
        "sampling_params": {"max_tokens": 4, "temperature": 0},
        "stream": True,
        "cache_salt": "stream",
        "kv_transfer_params": {"everturn": {"attempt": attempt, "tenant": TENANT, "offer": handle}},
    }
    with second_v12_engine.http.stream(
        "POST", f"{second_v12_engine.url}/inference/v1/generate", json=body
    ) as stream:
        lines = list(stream.iter_lines())
    assert "data: [DONE]" in lines
    streamed = second_v12_engine.evidence(attempt)
    assert streamed is not None
    assert streamed.loaded is not None
    assert whole is not None
    assert (streamed.loaded.artifact, streamed.loaded.tokens) == (whole.artifact, whole.tokens)


def test_many_requests_at_once_each_read_their_own_artifact(
    v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    prompts = [prompt(100 + i, 120) for i in range(12)]
    handles = [new_handle() for _ in prompts]
    for ids, handle in zip(prompts, handles, strict=True):
        v12_engine.generate(ids, publish=handle, max_tokens=1)
    expected = [second_v12_engine.cold(ids).tokens for ids in prompts]

    async def ask_all() -> list[list[int]]:
        async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
            return await asyncio.gather(*(ask(http, i) for i in range(len(prompts))))

    async def ask(http: httpx.AsyncClient, index: int) -> list[int]:
        kv = {
            "attempt": f"att_many_{index}",
            "tenant": TENANT,
            "offer": handles[index],
            "publish": new_handle(),
        }
        body = {
            "token_ids": prompts[index],
            "sampling_params": {"max_tokens": 8, "temperature": 0},
            "kv_transfer_params": {"everturn": kv},
        }
        answer = await http.post(f"{second_v12_engine.url}/inference/v1/generate", json=body)
        return list(answer.raise_for_status().json()["choices"][0]["token_ids"])

    assert asyncio.run(ask_all()) == expected
    for index in range(len(prompts)):
        evidence = second_v12_engine.evidence(f"att_many_{index}", wait_s=10)
        assert evidence is not None
        assert evidence.loaded is not None
        assert evidence.published is not None


def test_requests_preempted_for_want_of_blocks_still_answer_right(
    engine_hall: EngineHall, v12_engine: RealEngine, tiny_v12: Path
) -> None:
    few_blocks = ("--max-model-len", "640", "--num-gpu-blocks-override", "24")
    engine = engine_hall.start(tiny_v12, v12_engine.store, *few_blocks)
    prompts = [prompt(200 + i, 150) for i in range(4)]
    handles = [new_handle() for _ in prompts]
    for ids, handle in zip(prompts, handles, strict=True):
        v12_engine.generate(ids, publish=handle, max_tokens=1)
    expected = [v12_engine.generate(ids, max_tokens=120, ignore_eos=True).tokens for ids in prompts]

    async def ask(http: httpx.AsyncClient, index: int) -> list[int]:
        kv = {
            "attempt": f"att_preempted_{index}",
            "tenant": TENANT,
            "offer": handles[index],
            "publish": new_handle(),
        }
        body = {
            "token_ids": prompts[index],
            "sampling_params": {"max_tokens": 120, "temperature": 0, "ignore_eos": True},
            "kv_transfer_params": {"everturn": kv},
        }
        answer = await http.post(f"{engine.url}/inference/v1/generate", json=body)
        return list(answer.raise_for_status().json()["choices"][0]["token_ids"])

    async def ask_all() -> list[list[int]]:
        async with httpx.AsyncClient(timeout=120, trust_env=False) as http:
            return await asyncio.gather(*(ask(http, i) for i in range(len(prompts))))

    assert asyncio.run(ask_all()) == expected
    metrics = engine.http.get(f"{engine.url}/metrics").text
    preemptions = [line for line in metrics.splitlines() if line.startswith("vllm:num_preemptions_total")]
    assert float(preemptions[0].rpartition(" ")[2]) > 0
    engine_hall.stop(engine)
