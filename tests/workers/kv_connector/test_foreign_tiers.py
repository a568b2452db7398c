"""vLLM's own prefix cache and file-system tier, with our connector in front of them and without: only with it are they safe."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.engines.checkpoints import TinyModel
from tests.engines.real import BLOCK, EngineHall, RealEngine
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine

PROMPT = prompt("a foreign tier")
BLOCKS = len(PROMPT) // BLOCK
REUSABLE = BLOCKS * BLOCK


def tier(folder: Path) -> dict[str, Any]:
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "tests.engines.cpu_tier",
            "cpu_bytes_to_use": 8 << 20,
            "secondary_tiers": [
                {"type": "fs", "root_dir": str(folder), "n_read_threads": 1, "n_write_threads": 1}
            ],
        },
    }


def start(hall: EngineHall, mount: Path, tmp_path: Path, *, guarded: bool) -> RealEngine:
    foreign = tier(tmp_path / "tier")
    return (
        hall.start(mount, tmp_path / "kv", behind=foreign)
        if guarded
        else hall.start(mount, tmp_path / "kv", instead=foreign)
    )


def files_settled(folder: Path) -> int:
    """The tier writes in the background; how many block files there are once none has come for half a second."""
    count, since = -1, time.monotonic()
    while time.monotonic() < since + 0.5:
        now = len(list(folder.rglob("*.bin")))
        if now != count:
            count, since = now, time.monotonic()
        time.sleep(0.05)
    return count


def cached(engine: RealEngine, tenant: str | None = None) -> tuple[int, list[int]]:
    """Tokens that the engine says it did not compute, and its answer; no handle is offered."""
    body: dict[str, Any] = {
        "model": "chat",
        "prompt": PROMPT,
        "max_tokens": 8,
        "temperature": 0,
        "return_token_ids": True,
    }
    if tenant is not None:
        body["kv_transfer_params"] = {"everturn": {"attempt": f"att_{tenant}", "tenant": tenant}}
    document = engine.http.post(f"{engine.url}/v1/completions", json=body).raise_for_status().json()
    details = document["usage"]["prompt_tokens_details"]
    return (details or {}).get("cached_tokens") or 0, document["choices"][0]["token_ids"]


@pytest.mark.parametrize("guarded", [True, False], ids=["with our connector in front", "alone"])
def test_other_weights_and_other_tenants_find_nothing_in_vllms_file_system_tier(
    engine_hall: EngineHall, v13_engine: RealEngine, tmp_path: Path, guarded: bool
) -> None:
    mount = tmp_path / "models"
    mount.symlink_to(TinyModel().write(tmp_path / "v12"))
    before = start(engine_hall, mount, tmp_path, guarded=guarded)
    reused, old = cached(before, "tenant_a")
    assert reused == 0
    assert files_settled(tmp_path / "tier") >= BLOCKS
    engine_hall.stop(before)

    same = start(engine_hall, mount, tmp_path, guarded=guarded)
    assert cached(same, "tenant_a") == (REUSABLE, old)
    assert cached(same, "tenant_b")[0] == (0 if guarded else REUSABLE)
    assert cached(same)[0] == (0 if guarded else REUSABLE)
    assert files_settled(tmp_path / "tier") >= BLOCKS
    engine_hall.stop(same)

    mount.unlink()
    mount.symlink_to(TinyModel(sigma=0.1).write(tmp_path / "v13"))
    after = start(engine_hall, mount, tmp_path, guarded=guarded)
    reused, answer = cached(after, "tenant_a")
    cold = v13_engine.cold(PROMPT).tokens
    assert cold != old
    if guarded:
        assert (reused, answer) == (0, cold)
    else:
        assert reused == REUSABLE
        assert answer != cold
    engine_hall.stop(after)
