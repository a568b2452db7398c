"""K6 through the service: real vLLM with adapters behind the real launcher, and an alias that moves between base and adapters."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from service.domain.artifact import BootId
from stack.ports import find_free_port
from tests.api.stack import Stack, running_stack
from tests.engines.adapters import TinyAdapter
from workers.kv_connector.adapters import take_copy

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
START_S = 120.0
TELL_S = 30.0
MAX_TOKENS = 12
FIRST = "Tell me of the museum, the harbour, the market and the old bridge, and when each of them opens. "


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The service with one engine in it, whose adapters lie in `folder`."""

    stack: Stack
    folder: Path
    address: str
    base: str
    boot: BootId

    def adapters(self) -> dict[str, dict[str, Any]]:
        """As operators see them, by name."""
        [engine] = live(self.stack)
        return {adapter["model"]: adapter for adapter in engine["adapters"]}

    def golden(self, model: str | None) -> dict[str, Any]:
        """What engines of that revision must answer from here on."""
        found: dict[str, Any] = self.stack.admin.get(
            f"/admin/revisions/{self.revision(model)}/canary"
        ).json()["recorded"]
        return found

    def revision(self, model: str | None) -> str:
        return self.base if model is None else str(self.adapters()[model]["revision"])

    def load(self, name: str, path: Path) -> httpx.Response:
        return self._engine("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    def unload(self, name: str) -> httpx.Response:
        return self._engine("/v1/unload_lora_adapter", {"lora_name": name})

    def cold(self, turn: dict[str, Any], model: str | None) -> list[int]:
        """The answer to exactly the ids that this turn saw, prefilled from nothing under the adapter of that name."""
        body = {
            "token_ids": self._ids("SELECT audit.prompt_of(:turn)", turn),
            "sampling_params": {"max_tokens": MAX_TOKENS, "temperature": 0},
            "cache_salt": os.urandom(8).hex(),
        } | ({} if model is None else {"model": model})
        answer = self._engine("/inference/v1/generate", body).raise_for_status()
        found: list[int] = answer.json()["choices"][0]["token_ids"]
        return found

    def output(self, turn: dict[str, Any]) -> list[int]:
        return self._ids("SELECT output FROM audit.turn_tokens WHERE turn_id = :turn", turn)

    def provenance(self, conversation: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.stack.admin.get(
            "/admin/audit/turn_provenance", params={"conversation_id": conversation}
        ).json()["data"]
        return found

    def _ids(self, query: str, turn: dict[str, Any]) -> list[int]:
        with self.stack.owner.connect() as conn:
            return list(conn.execute(text(query), {"turn": turn["id"]}).scalar_one())

    def _engine(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{self.address}{path}", json=body, timeout=60, trust_env=False)


@dataclass(slots=True, kw_only=True)
class Chat:
    served: Served
    id: str
    turns: int = 0

    def say(self, words: str) -> dict[str, Any]:
        """Its KV is in the store when this returns."""
        turn = self.served.stack.ask(words, conversation=self.id, temperature=0, max_output_tokens=MAX_TOKENS)
        self.turns += 1
        self.served.stack.await_artifacts(self.id, self.turns)
        return turn

    def moved(self, model: str | None, words: str) -> dict[str, Any]:
        """The turn after the alias has moved."""
        self.served.stack.point(self.served.revision(model))
        turn = self.served.stack.ask(words, conversation=self.id, temperature=0, max_output_tokens=MAX_TOKENS)
        self.turns += 2
        self.served.stack.await_artifacts(self.id, self.turns)
        return turn


def live(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stack.admin.get("/admin/engines").json()["data"]
    return [engine for engine in found if engine["state"] != "gone"]


def until(true: Callable[[], object], what: str, limit_s: float = TELL_S) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture
def served(database: str, engine_zygote: Path, tiny_v12: Path, tmp_path: Path) -> Iterator[Served]:
    """With adapter `style` from the start."""
    folder = tmp_path / "adapters"
    style = TinyAdapter(seed=1).write(folder / "style")
    with running_stack(database, engine_lease_s=6, engine_silence_s=60) as stack:
        (tmp_path / "key").write_text(stack.secrets.operator)
        port = find_free_port()
        arguments = {
            "--model": tiny_v12,
            "--served-model-name": "chat",
            "--port": port,
            "--api": stack.url,
            "--key-file": tmp_path / "key",
            "--store": tmp_path / "kv",
            "--run-dir": tmp_path / "run",
            "--zygote": engine_zygote,
            "--kv-cache-memory-bytes": 32 << 20,
            "--adapter": f"style={style}",
        }
        launcher = subprocess.Popen(
            [
                *(sys.executable, "-m", "workers.launcher"),
                *(str(part) for pair in arguments.items() for part in pair),
                # Every reuse seen here comes from the store.
                *("--", "--max-loras", "2", "--no-enable-prefix-caching"),
            ],
            cwd=ROOT,
            env=dict(os.environ) | {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(lambda: live(stack) or launcher.poll() is not None, "the engine never registered", START_S)
            assert launcher.poll() is None, launcher.communicate()[1]
            [engine] = live(stack)
            yield Served(
                stack=stack,
                folder=folder,
                address=engine["address"],
                base=engine["revision"],
                boot=BootId(engine["boot"]),
            )
        finally:
            launcher.terminate()
            launcher.communicate(timeout=60)


def assert_rebuilt(served: Served, turn: dict[str, Any], model: str | None) -> None:
    assert turn["revision"] == served.revision(model)
    assert (turn["kv"]["plan"], turn["kv"]["source"]) == ("rebuild", "rebuilt")
    assert turn["kv"]["refusal"] == {"reason": "revision_mismatch", "differing_fields": ["adapter"]}
    assert turn["kv"]["tokens_loaded"] > 0
    assert served.output(turn) == served.cold(turn, model)


def test_turns_move_from_base_to_adapter_to_adapter_and_back(served: Served) -> None:
    stack = served.stack
    until(lambda: "style" in served.adapters(), "the adapter was never told")
    stack.point(served.base)
    chat = Chat(served=served, id=stack.conversation())

    # Each has answered the canary, and otherwise than the other
    assert served.golden("style")["boot"] == served.golden(None)["boot"] == served.boot
    assert served.golden("style")["prompt"] == served.golden(None)["prompt"]
    assert served.golden("style")["answer"] != served.golden(None)["answer"]

    # On the base, and its twin: the same revision reads its own KV
    first = chat.say(FIRST * 2)
    assert served.output(first) == served.cold(first, None)
    twin = chat.say("And then?")
    assert (twin["kv"]["source"], twin["revision_changed"]) == ("reused", False)
    assert served.output(twin) == served.cold(twin, None)

    # base -> style
    moved = chat.moved("style", "What of the harbour?")
    assert_rebuilt(served, moved, "style")
    assert served.output(moved) != served.cold(moved, None), "the adapter shows"

    # its twin under the adapter
    twin = chat.say("And the market?")
    assert (twin["kv"]["source"], twin["kv"]["refusal"]) == ("reused", None)
    assert served.output(twin) == served.cold(twin, "style")

    # overwritten in place, and loaded at run time under another name: another revision
    path = TinyAdapter(seed=2).write(served.folder / "style")
    taken = served.load("style", path)
    assert (taken.status_code, "has stood for" in taken.text) == (400, True)
    assert served.load("style-2", path).status_code == 200
    until(lambda: "style-2" in served.adapters(), "the adapter loaded at run time was never told")
    assert len({served.base, served.revision("style"), served.revision("style-2")}) == 3
    assert served.golden("style-2")["boot"] == served.boot
    descriptor = stack.admin.get(f"/admin/revisions/{served.revision('style-2')}").json()["descriptor"]
    assert descriptor["kv"]["adapter"] == take_copy(path, served.folder / "copies").name

    # style -> style-2, and back: then its own KV is good again
    moved = chat.moved("style-2", "What of the bridge?")
    assert_rebuilt(served, moved, "style-2")
    assert served.output(moved) != served.cold(moved, "style"), "the second adapter shows"
    stack.point(served.revision("style"))
    back = chat.say("Thank you.")
    assert (back["kv"]["plan"], back["kv"]["source"]) == ("reuse", "reused")
    assert served.output(back) == served.cold(back, "style")

    # the record: the engine's own measurement, and no reading across
    rows = served.provenance(chat.id)
    assert [row["decode_revision"] for row in rows] == [
        served.revision(model) for model in (None, None, "style", "style", "style-2", "style")
    ]
    assert [row["decode_registered_revision"] for row in rows] == [row["decode_revision"] for row in rows]
    assert {row["first_divergence"] for row in rows} == {None}
    assert stack.admin.get("/admin/audit/cross_revision_hits").json()["data"] == []

    # unloaded: it disappears, and the base goes on
    assert served.unload("style-2").status_code == 200
    until(lambda: "style-2" not in served.adapters(), "the adapter that was unloaded is still there")
    assert "style" in served.adapters()
