"""Weights cannot change under a measured revision: every route by which vLLM would is closed, also where it offers them all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.real import EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt
from workers.kv_connector.middleware import WEIGHT_CHANGING_ROUTES

pytestmark = pytest.mark.engine

HARMLESS = frozenset(
    {
        "/abort_requests",
        "/detokenize",
        "/generative_scoring",
        "/inference/v1/abort_requests",
        "/inference/v1/generate",
        "/invocations",
        "/pause",
        "/ping",
        "/reset_encoder_cache",
        "/reset_mm_cache",
        "/reset_prefix_cache",
        "/resume",
        "/start_profile",
        "/stop_profile",
        "/tokenize",
        "/is_scaling_elastic_ep",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/derender",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/completions/derender",
        "/v1/completions/render",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/responses",
        "/v1/responses/derender",
        "/v1/responses/render",
        "/v1/responses/{response_id}/cancel",
        "/v1/systemone",
    }
)
"""That change no weights, by reading what each of them calls."""


@pytest.fixture(scope="module")
def engine(engine_hall: EngineHall, tiny_v12: Path, kv_store: Path) -> Iterator[RealEngine]:
    """With every route for developers that vLLM has."""
    engine = engine_hall.start(tiny_v12, kv_store, env={"VLLM_SERVER_DEV_MODE": "1"})
    yield engine
    engine_hall.stop(engine)


def test_no_route_that_vllm_offers_is_unknown_to_us(engine: RealEngine) -> None:
    """A later vLLM may add one by which weights change: then this fails, and someone reads it."""
    paths = engine.http.get(f"{engine.url}/openapi.json").raise_for_status().json()["paths"]
    posts = {path for path, methods in paths.items() if set(methods) - {"get"}}
    assert "/collective_rpc" in posts
    assert posts - HARMLESS - WEIGHT_CHANGING_ROUTES == set()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/collective_rpc", {"method": "reload_weights"}),
        ("/sleep?level=2", None),
        ("/wake_up", None),
        ("/update_weights", {"update_info": {}}),
        ("/start_weight_update", {}),
        ("/release_kv_cache_memory", None),
        ("/weight_checker", {"action": "reset"}),
    ],
)
def test_weights_cannot_be_reloaded_slept_away_or_updated(
    engine: RealEngine, v12_engine: RealEngine, route: str, body: object
) -> None:
    ids, handle = prompt(f"fixed {route}"), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1)
    answer = engine.http.post(f"{engine.url}{route}", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "revision_fixed")
    assert engine.http.get(f"{engine.url}/is_sleeping").json() == {"is_sleeping": False}
    reply = engine.generate(ids, offer=handle)
    assert reply.known.loaded is not None
    assert reply.known.revision == v12_engine.revision
