"""Adapters in one real engine: per request, loaded at run time, claimed, and given in a way that nobody can vouch for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.domain.adapter import effective
from service.domain.artifact import RefusalReason
from service.domain.evidence import REVISION_HEADER
from service.domain.revision import Descriptor
from tests.engines.adapters import TinyAdapter
from tests.engines.real import EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt
from workers.kv_connector.adapters import FOLDER, take_copy

pytestmark = pytest.mark.engine

A, B = TinyAdapter(seed=1), TinyAdapter(seed=2)
RUNTIME = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def engine(engine_hall: EngineHall, tiny_v12: Path, kv_store: Path, folder: Path) -> Iterator[RealEngine]:
    adapters = {"one": A.write(folder / "one")}
    engine = engine_hall.start(tiny_v12, kv_store, "--max-loras", "2", env=RUNTIME, adapters=adapters)
    yield engine
    engine_hall.stop(engine)


def load(engine: RealEngine, name: str, path: Path, **more: object) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(path)} | more
    return engine.http.post(f"{engine.url}/v1/load_lora_adapter", json=body)


def test_adapters_take_turns_and_each_answers_as_it_does_alone(engine: RealEngine, folder: Path) -> None:
    """The second is loaded at run time, from a path that is then overwritten with the first."""
    path = B.write(folder / "moving")
    assert load(engine, "two", path).status_code == 200
    A.write(path)
    assert load(engine, "one again", path).status_code == 200
    ids, handle = prompt("turns"), new_handle()
    assert engine.generate(ids, model="one", publish=handle, max_tokens=1).known.published is not None
    alone = {name: engine.cold(ids, model=name) for name in ("one", "two", "one again")}
    assert alone["one"].logprobs == alone["one again"].logprobs != alone["two"].logprobs
    for name, reads in (("one", True), ("two", False), ("one again", True), ("two", False), ("one", True)):
        reply = engine.generate(ids, model=name, offer=handle, cache_salt=new_handle())
        assert (reply.known.loaded is not None) is reads, name
        assert (reply.tokens, reply.logprobs) == (alone[name].tokens, alone[name].logprobs), name
    for name in ("one", "two", "one again"):
        assert engine.generate(ids, model=name).known.loaded is None
        assert engine.generate(ids, model=name).logprobs == alone[name].logprobs, "in the prefix cache too"


def test_a_name_never_stands_for_two_adapters(engine: RealEngine, folder: Path) -> None:
    other = TinyAdapter(seed=3).write(folder / "other")
    taken = load(engine, "one", other)
    assert taken.status_code == 400
    assert "has stood for" in taken.text
    in_place = load(engine, "one", other, load_inplace=True)
    assert (in_place.status_code, in_place.json()["error"]["param"]) == (400, "load_inplace")
    nothing = load(engine, "none", folder / "nothing")
    assert (nothing.status_code, nothing.json()["error"]["param"]) == (400, "adapter")


def test_a_claim_is_compared_with_the_model_that_the_request_names(engine: RealEngine, folder: Path) -> None:
    own = Descriptor.from_json(engine.identity["descriptor"])
    adapted = effective(own, take_copy(folder / "one", folder / "copies").name).digest
    ids = prompt("claims", 40)
    claims: list[tuple[dict[str, Any], str, int]] = [
        ({}, own.digest, 200),
        ({"model": "one"}, adapted, 200),
        ({"model": "one"}, own.digest, 409),
        ({}, adapted, 409),
    ]
    for model, claimed, status in claims:
        reply = engine.generate(ids, headers={REVISION_HEADER: claimed}, **model)
        assert reply.status == status, (model, claimed)
        if status == 200:
            assert reply.known.revision == claimed
        else:
            assert reply.document["error"]["measured"] == (adapted if model else own.digest)
            assert reply.document["error"]["differing_fields"] == ["adapter"]


def test_an_engine_tells_what_it_serves_as_it_comes_and_goes(engine: RealEngine, folder: Path) -> None:
    own = Descriptor.from_json(engine.identity["descriptor"])
    digests = {
        name: take_copy(adapter.write(folder / name), folder / "copies").name
        for name, adapter in (("one", A), ("three", TinyAdapter(seed=4)))
    }

    def told() -> dict[str, Any]:
        return {adapter["model"]: adapter for adapter in engine.identity["adapters"]}

    def as_served(name: str) -> dict[str, Any]:
        return {"model": name, "adapter": digests[name], "revision": effective(own, digests[name]).digest}

    assert told()["one"] == as_served("one")
    assert load(engine, "three", folder / "three").status_code == 200
    assert told()["three"] == as_served("three")
    unload = {"lora_name": "three"}
    assert engine.http.post(f"{engine.url}/v1/unload_lora_adapter", json=unload).status_code == 200
    assert "three" not in told()


def test_rendering_takes_a_claim_for_an_adapter_by_its_name(engine: RealEngine) -> None:
    [one] = [adapter for adapter in engine.identity["adapters"] if adapter["model"] == "one"]
    ask = {"messages": [{"role": "user", "content": "hi"}], "carried": None}
    claim = {REVISION_HEADER: one["revision"]}

    def render(**model: str) -> httpx.Response:
        return engine.http.post(f"{engine.url}/everturn/render", json=ask | model, headers=claim)

    assert render(model="one").json() == engine.http.post(f"{engine.url}/everturn/render", json=ask).json()
    assert render().status_code == 409


def test_an_adapter_that_vllm_was_given_past_us_reads_and_publishes_nothing(
    engine_hall: EngineHall, tiny_v12: Path, kv_store: Path, folder: Path, engine: RealEngine
) -> None:
    path = A.write(folder / "raw")
    ids, handle = prompt("raw"), new_handle()
    engine.generate(ids, model="one", publish=handle, max_tokens=1)
    other = engine_hall.start(
        tiny_v12, kv_store, "--max-loras", "2", "--enable-lora", "--lora-modules", f"raw={path}"
    )
    reply = other.generate(ids, model="raw", offer=handle, publish=new_handle())
    assert (reply.known.revision, reply.known.loaded, reply.known.published) == (None, None, None)
    assert reply.known.refusal is not None
    assert reply.known.refusal.reason is RefusalReason.REVISION_UNKNOWN
    assert "--adapter" in reply.known.refusal.detail
    [told] = other.identity["adapters"]
    assert (told["model"], "revision" in told, "--adapter" in told["reason"]) == ("raw", False, True)
    assert other.generate(ids, model="raw").known.local_tokens == 0, "nor from the engine's own cache"
    assert reply.tokens == engine.cold(ids, model="one").tokens
    engine_hall.stop(other)


def test_the_copies_lie_in_the_engines_own_folder(engine: RealEngine) -> None:
    copies = [path for path in (engine.run_dir / FOLDER).iterdir() if not path.name.startswith(".")]
    assert copies
    assert all(len(path.name) == 64 for path in copies)
