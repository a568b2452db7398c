"""The two senders, against an engine over real HTTP."""

from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from service.domain.artifact import ArtifactId, BootId
from service.domain.conversation import Item
from service.domain.errors import EngineFailed, InvalidInput, RevisionMismatch
from service.domain.events import ItemId, Role, Sampling
from service.domain.evidence import KvRequest
from service.domain.plan import Engine, EngineRole, EngineState
from service.engine import client
from service.engine.engine_http import EngineHttp
from service.engine.protocol import GenerateSpec, RenderMode
from tests.engines.simulated import SimulatedEngine
from tests.engines.simulated_text import STOP, render


@pytest.fixture
def simulated() -> Iterator[SimulatedEngine]:
    with SimulatedEngine("a", {}) as engine:
        yield engine


def engine_of(simulated: SimulatedEngine) -> Engine:
    return Engine(
        boot=simulated.boot,
        revision=simulated.descriptor.digest,
        address=simulated.address,
        role=EngineRole.BOTH,
        state=EngineState.READY,
    )


def spec_of(simulated: SimulatedEngine, most: int = 20) -> GenerateSpec:
    return GenerateSpec(
        prompt=tuple(range(10, 22)),
        sampling=Sampling(max_output_tokens=most, temperature=0.0, top_p=1.0),
        kv=KvRequest(attempt="resp_1.1", tenant="acme", publish=ArtifactId("kv_" + "0" * 32)),
        revision=simulated.descriptor.digest,
        boot=simulated.boot,
        cache_salt="salt",
    )


def engine_http() -> EngineHttp:
    return EngineHttp(silence_s=20)


async def collect(simulated: SimulatedEngine, spec: GenerateSpec) -> list[int]:
    async with engine_http() as http:
        chunks = [c async for c in client.stream_generate(http, engine_of(simulated), spec)]
    return [token for chunk in chunks for token in chunk.token_ids]


async def test_a_stream_gives_every_token_and_evidence_follows(simulated: SimulatedEngine) -> None:
    spec = spec_of(simulated)
    assert await collect(simulated, spec) == simulated.answer(spec.prompt)
    async with engine_http() as http:
        evidence = await client.evidence(http, engine_of(simulated), "resp_1.1", 1)
        assert await client.evidence(http, engine_of(simulated), "resp_9.1", 0) is None
    assert evidence is not None
    assert evidence.published is not None
    assert evidence.prompt_tokens == len(spec.prompt)


async def test_a_stream_that_breaks_off_is_a_failure_of_the_engine(simulated: SimulatedEngine) -> None:
    simulated.faults.die_after = 2
    with pytest.raises(EngineFailed):
        await collect(simulated, spec_of(simulated))


async def test_an_answer_to_another_prompt_is_none(simulated: SimulatedEngine) -> None:
    simulated.faults.other_prompt = True
    with pytest.raises(EngineFailed, match="other token ids"):
        await collect(simulated, spec_of(simulated))
    with httpx.Client() as http, pytest.raises(EngineFailed, match="other token ids"):
        client.prefill(http, simulated.address, spec_of(simulated))


async def test_a_stream_that_ends_before_its_answer_does_is_a_failure(simulated: SimulatedEngine) -> None:
    simulated.faults.end_after = 2
    with pytest.raises(EngineFailed):
        await collect(simulated, spec_of(simulated))


async def test_a_dead_address_is_a_failure_of_the_engine(simulated: SimulatedEngine) -> None:
    async with engine_http() as http:
        nowhere = replace(engine_of(simulated), address="http://127.0.0.1:1")
        stream = client.stream_generate(http, nowhere, spec_of(simulated))
        with pytest.raises(EngineFailed):
            await anext(stream)


async def test_an_engine_of_another_revision_is_told_apart(simulated: SimulatedEngine) -> None:
    spec = replace(spec_of(simulated), boot=BootId("boot_other"))
    with pytest.raises(RevisionMismatch):
        await collect(simulated, spec)
    assert simulated.prompts == []


async def test_a_prompt_that_the_engine_does_not_take_is_the_inputs_fault(simulated: SimulatedEngine) -> None:
    simulated.faults.max_model_len = 5
    with pytest.raises(InvalidInput):
        await collect(simulated, spec_of(simulated))
    async with engine_http() as http:
        assert await client.max_model_len(http, engine_of(simulated)) == 5


async def test_a_render_comes_back_as_ids(simulated: SimulatedEngine) -> None:
    items = [Item(id=ItemId("msg_1"), role=Role.USER, text="hi")]
    async with engine_http() as http:
        rendered = await client.render(http, engine_of(simulated), items, None)
    assert rendered.mode is RenderMode.FULL
    assert rendered.token_ids == tuple(render([{"role": "user", "content": "hi"}]))
    assert STOP in rendered.token_ids


def test_a_prefill_publishes_the_prompt_alone(simulated: SimulatedEngine) -> None:
    with httpx.Client() as http:
        client.prefill(http, simulated.address, spec_of(simulated, most=1))
        evidence = client.prefill_evidence(http, simulated.address, "resp_1.1", 1)
    assert evidence is not None
    assert evidence.published is not None
    assert evidence.published.tokens == 12


def test_a_prefill_on_a_dead_address_is_a_failure_of_the_engine(simulated: SimulatedEngine) -> None:
    with httpx.Client() as http, pytest.raises(EngineFailed):
        client.prefill(http, "http://127.0.0.1:1", spec_of(simulated))
