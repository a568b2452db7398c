"""The middleware as ASGI calls it: no way of writing a path gets past it, and its own routes say what happened."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.domain.artifact import RefusalReason
from service.domain.errors import InvalidInput
from tests.domain.descriptors import V12, V13
from workers.kv_connector.counters import Count, Counters, as_prometheus, read_counters
from workers.kv_connector.guard_facts import connectors_in_order
from workers.kv_connector.identity import measure
from workers.kv_connector.middleware import WEIGHT_CHANGING_ROUTES, EverturnMiddleware
from workers.kv_connector.reports import Reports
from workers.kv_connector.versions import TESTED_VLLM, is_tested, require_tested

BOOT = "boot_front"


class Front:
    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self.reports = Reports(self.run_dir)
        self.passed: list[str] = []
        self._middleware = EverturnMiddleware(self._vllm)

    async def _vllm(self, scope: Any, _receive: Any, send: Any) -> None:
        self.passed.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    def ask(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, root_path: str = ""
    ) -> tuple[int, str]:
        sent: list[dict[str, Any]] = []
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "root_path": root_path,
            "query_string": b"",
            "headers": [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "app": SimpleNamespace(
                state=SimpleNamespace(vllm_config=SimpleNamespace(kv_transfer_config=None))
            ),
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(event: Any) -> None:
            sent.append(event)

        asyncio.run(self._middleware(scope, receive, send))
        return sent[0]["status"], sent[1]["body"].decode()


@pytest.fixture
def front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Front:
    monkeypatch.setenv("EVERTURN_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("EVERTURN_STORE", str(tmp_path / "kv"))
    return Front(tmp_path)


def measured(front: Front) -> None:
    front.reports.write_identity({"boot": BOOT, "revision": V12.digest, "descriptor": V12.to_json()})


@pytest.mark.parametrize("route", sorted(WEIGHT_CHANGING_ROUTES))
@pytest.mark.parametrize(("root_path", "prefix"), [("", ""), ("/llm", ""), ("/llm", "/llm")])
def test_calls_that_change_weights_do_not_pass_under_any_prefix(
    front: Front, route: str, root_path: str, prefix: str
) -> None:
    measured(front)
    status, body = front.ask("POST", prefix + route, root_path=root_path)
    assert (status, json.loads(body)["error"]["type"]) == (409, "revision_fixed")
    assert front.passed == []


def test_other_calls_pass(front: Front) -> None:
    measured(front)
    assert front.ask("POST", "/v1/completions")[0] == 200
    assert front.ask("POST", "/llm/v1/completions", root_path="/llm")[0] == 200
    assert front.passed == ["/v1/completions", "/llm/v1/completions"]


@pytest.mark.parametrize(
    "route", ["/inference/v1/generate", "/v1/completions", "/v1/chat/completions", "/everturn/render"]
)
def test_a_claim_of_another_revision_is_turned_away_before_vllm_hears_of_it(front: Front, route: str) -> None:
    measured(front)
    status, body = front.ask("POST", route, headers={"x-everturn-revision": V13.digest})
    error = json.loads(body)["error"]
    assert (status, error["type"]) == (409, "revision_mismatch")
    assert (error["wanted"], error["measured"]) == (V13.digest, V12.digest)
    assert front.passed == []


def test_before_it_is_measured_no_claim_is_right(front: Front) -> None:
    claim = {"x-everturn-revision": V12.digest}
    assert front.ask("POST", "/v1/completions", headers=claim)[0] == 409
    measured(front)
    assert front.ask("POST", "/v1/completions", headers=claim)[0] == 200
    assert front.ask("POST", "/v1/completions", headers={"X-Everturn-Revision": V13.digest})[0] == 409


def test_once_its_weights_changed_in_place_no_claim_is_right_any_more(front: Front) -> None:
    measured(front)
    claim = {"x-everturn-revision": V12.digest}
    assert front.ask("POST", "/v1/completions", headers=claim)[0] == 200
    front.reports.write_identity({"boot": BOOT, "revision": None, "error": "changed"})
    status, body = front.ask("POST", "/v1/completions", headers=claim)
    assert (status, json.loads(body)["error"]["measured"]) == (409, None)
    status, body = front.ask("GET", "/everturn/identity")
    assert (status, json.loads(body)["error"]["type"]) == (503, "unmeasured")
    assert front.ask("POST", "/v1/completions")[0] == 200, "it still serves whoever claims nothing"


def test_what_happened_is_shown_as_prometheus_text(front: Front) -> None:
    counters = Counters(front.run_dir)
    counters.add(Count.HITS)
    counters.add(Count.HIT_SECONDS, 0.25)
    counters.add(Count.HIT_SECONDS, 0.5)
    counters.add(Count.REFUSALS, reason=RefusalReason.REVISION_MISMATCH)
    status, text = front.ask("GET", "/everturn/metrics")
    assert status == 200
    assert "everturn_kv_hits_total 1\n" in text
    assert "everturn_kv_hit_seconds_total 0.75\n" in text
    assert 'everturn_kv_refusals_total{reason="revision_mismatch"} 1\n' in text
    assert 'everturn_kv_refusals_total{reason="checksum_mismatch"} 0\n' in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)) == len(Count)


def test_counters_begin_at_zero_at_each_boot_and_are_none_before(tmp_path: Path) -> None:
    assert read_counters(tmp_path) == {}
    before = Counters(tmp_path)
    before.add(Count.HITS, 7)
    Counters(tmp_path)
    before.add(Count.HITS)
    assert set(read_counters(tmp_path).values()) == {0}
    (tmp_path / "counters").write_bytes(b"of another version")
    assert read_counters(tmp_path) == {}
    assert as_prometheus({}).count("# HELP") == len(Count)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (None, []),
        (SimpleNamespace(kv_connector=None, kv_connector_extra_config={}), []),
        (SimpleNamespace(kv_connector="A", kv_connector_extra_config={}), ["A"]),
        (
            SimpleNamespace(
                kv_connector="MultiConnector",
                kv_connector_extra_config={"connectors": [{"kv_connector": "A"}, {"kv_connector": "B"}]},
            ),
            ["A", "B"],
        ),
    ],
)
def test_connectors_are_named_in_the_order_in_which_vllm_asks_them(config: Any, names: list[str]) -> None:
    assert connectors_in_order(config) == names


@pytest.mark.parametrize("version", ["0.31.0", "0.32.1", "0.32.0rc1", "0.33.0+cpu", ""])
def test_an_engine_on_an_untested_vllm_has_no_revision(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("vllm.__version__", version)
    with pytest.raises(InvalidInput, match="is untested") as refused:
        measure(SimpleNamespace(model_config=None, cache_config=None), None, {}, tmp_path, environ={})
    assert refused.value.param == "engine_version"
    assert all(tested in str(refused.value) for tested in TESTED_VLLM)


def test_a_build_for_another_device_is_the_same_version() -> None:
    assert is_tested(f"{TESTED_VLLM[0]}+cu129")
    require_tested(TESTED_VLLM[0])
