"""A store that hangs: whoever waits for it is answered, the engine gets its blocks back, and all goes on once it answers again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from service.domain.artifact import ArtifactId, MadeBy, RefusalReason, block_keys
from service.domain.evidence import Loaded, Published, Refusal
from tests.engines.offers import published, refusal_of
from tests.engines.real import EngineHall, RealEngine, Reply, new_handle
from tests.workers.kv_connector.paged_fakes import (
    SIZE,
    TENANT,
    TOKENS,
    Side,
    load_job,
    manifest_of,
    save,
    side,
)
from tests.workers.kv_connector.prompts import prompt
from workers.kv_connector.jobs import Jobs, LoadJob, SaveBlock, SaveJob
from workers.kv_connector.paged import Buffer
from workers.kv_connector.worker import Settled, WorkerSide

HANDLE = "kv_0123456789"
PATIENCE_S = 0.2
FLAG = "hangs"
DEADLINE_S = 30.0


@dataclass(slots=True)
class Gate:
    """In front of one of the store's calls."""

    opened: Event = field(default_factory=Event)
    reached: Event = field(default_factory=Event)

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(DEADLINE_S)
            return call(*args)

        return gated


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def engine(tmp_path: Path) -> Side:
    save(side(tmp_path), HANDLE)
    return side(tmp_path, seed=1)


@pytest.fixture
def worker(engine: Side, gate: Gate) -> Iterator[WorkerSide]:
    worker = WorkerSide(engine.paged, engine.loader, engine.saver, stalled_after_s=PATIENCE_S)
    yield worker
    gate.opened.set()
    until(worker, lambda settled: not settled.stalled)
    worker.shutdown()


def until(worker: WorkerSide, holds: Callable[[Settled], bool]) -> Settled:
    """All that settles until then, in one."""
    whole = Settled()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        settled = worker.settled()
        whole = replace(settled, loaded=whole.loaded | settled.loaded, saved=whole.saved | settled.saved)
        if holds(whole):
            return whole
        time.sleep(0.01)
    pytest.fail(f"never came: {whole}")


def loading(engine: Side, name: str = "r") -> LoadJob:
    return replace(load_job(manifest_of(engine, HANDLE)), request_id=name)


def saving(engine: Side, name: str = "s", handle: str = "kv_second0000") -> SaveJob:
    keys = block_keys(engine.paged.own.digest, TENANT, [*TOKENS, *range(7000, 7000 + SIZE)], SIZE)
    blocks = tuple(
        SaveBlock(key=key, block_id=index, made_by=MadeBy.PREFILL, stored=None)
        for index, key in enumerate(keys)
    )
    return SaveJob(
        request_id=name, attempt="a", tenant=TENANT, artifact=ArtifactId(handle), lease_s=60, blocks=blocks
    )


def hang(monkeypatch: pytest.MonkeyPatch, engine: Side, gate: Gate, call: str) -> None:
    monkeypatch.setattr(engine.store, call, gate.before(getattr(engine.store, call)))


def test_a_load_that_hangs_is_refused_and_never_writes_into_blocks_that_went_back(
    monkeypatch: pytest.MonkeyPatch, engine: Side, worker: WorkerSide, gate: Gate
) -> None:
    hang(monkeypatch, engine, gate, "read_block")
    before = {name: cache.clone() for name, cache in engine.caches.items()}
    worker.start(Jobs(loads=(loading(engine),)))
    settled = until(worker, lambda s: bool(s.loaded))
    (refusal,) = settled.loaded.values()
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.detail) == (
        RefusalReason.STORE_UNREACHABLE,
        "the store moved no block for 0.2 s",
    )
    assert settled.stalled
    gate.opened.set()
    recovered = until(worker, lambda s: not s.stalled)
    assert not recovered.loaded, "answered once"
    for name, cache in engine.caches.items():
        assert torch.equal(cache, before[name])


def test_a_save_that_hangs_is_given_up_and_never_copies_blocks_that_went_back(
    monkeypatch: pytest.MonkeyPatch, engine: Side, worker: WorkerSide, gate: Gate
) -> None:
    hang(monkeypatch, engine, gate, "put_block")
    copied: list[int] = []
    copy_out = engine.paged.copy_out

    def counted(block_id: int, buffer: Buffer) -> None:
        copied.append(block_id)
        copy_out(block_id, buffer)

    monkeypatch.setattr(engine.paged, "copy_out", counted)
    many = saving(engine)
    many = replace(many, blocks=many.blocks * 8)
    worker.start(Jobs(saves=(many,)))
    settled = until(worker, lambda s: bool(s.saved))
    assert settled.saved == {"s": "the store moved no block for 0.2 s"}
    at_most = len(copied)
    assert 0 < at_most < len(many.blocks)
    gate.opened.set()
    recovered = until(worker, lambda s: not s.stalled)
    assert recovered.saved == {}
    assert len(copied) == at_most
    with pytest.raises(FileNotFoundError):
        manifest_of(engine, many.artifact)


def test_what_waits_behind_a_transfer_that_hangs_is_answered_too(
    monkeypatch: pytest.MonkeyPatch, engine: Side, worker: WorkerSide, gate: Gate
) -> None:
    hang(monkeypatch, engine, gate, "read_block")
    worker.start(Jobs(loads=tuple(loading(engine, str(n)) for n in range(8))))
    settled = until(worker, lambda s: len(s.loaded) == 8)
    assert all(isinstance(outcome, Refusal) for outcome in settled.loaded.values())


def test_once_the_store_answers_again_loads_and_saves_go_through(
    monkeypatch: pytest.MonkeyPatch, engine: Side, worker: WorkerSide, gate: Gate
) -> None:
    hang(monkeypatch, engine, gate, "read_block")
    worker.start(Jobs(loads=(loading(engine),)))
    until(worker, lambda s: s.stalled)
    gate.opened.set()
    news = until(worker, lambda s: not s.stalled)
    assert news.outcomes is not None, "the scheduler side is told"
    assert not news.outcomes.stalled
    worker.start(Jobs(loads=(loading(engine, "again"),), saves=(saving(engine),)))
    settled = until(worker, lambda s: bool(s.loaded and s.saved))
    assert isinstance(settled.loaded["again"], Loaded)
    assert isinstance(settled.saved["s"], Published)


def test_a_transfer_that_is_slow_but_gets_on_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, engine: Side, gate: Gate
) -> None:
    gate.opened.set()
    worker = WorkerSide(engine.paged, engine.loader, engine.saver, stalled_after_s=1.0)
    put = engine.store.put_block

    def slowly(*args: Any) -> bool:
        time.sleep(0.4)
        return put(*args)

    monkeypatch.setattr(engine.store, "put_block", slowly)
    many = saving(engine)
    keys = [f"{n:064x}" for n in range(16)]
    many = replace(
        many, blocks=tuple(replace(many.blocks[0], key=key, block_id=n % 8) for n, key in enumerate(keys))
    )
    worker.start(Jobs(saves=(many,)))
    settled = until(worker, lambda s: bool(s.saved))
    worker.shutdown()
    assert isinstance(settled.saved["s"], Published)


def test_a_transfer_that_has_not_waited_long_is_not_given_up_with_another_that_hangs(
    monkeypatch: pytest.MonkeyPatch, engine: Side, worker: WorkerSide, gate: Gate
) -> None:
    with monkeypatch.context() as hanging:
        hang(hanging, engine, gate, "read_block")
        worker.start(Jobs(loads=(loading(engine),)))
        until(worker, lambda s: s.stalled)
    worker.start(Jobs(loads=(loading(engine, "young"),)))
    settled = until(worker, lambda s: "young" in s.loaded)
    assert isinstance(settled.loaded["young"], Loaded)
    assert settled.stalled


def wait_until_it_carries(engine: RealEngine, ids: list[int], handle: str) -> Reply:
    deadline = time.monotonic() + DEADLINE_S
    while (reply := engine.cold(ids, offer=handle, publish=new_handle())).known.loaded is None:
        assert time.monotonic() < deadline, reply.known
    return reply


@pytest.mark.engine
def test_an_engine_serves_on_while_its_store_hangs_and_carries_kv_again_afterwards(
    engine_hall: EngineHall, tiny_v12: Path, v12_engine: RealEngine
) -> None:
    engine = engine_hall.start(tiny_v12, v12_engine.store, connector="tests.engines.hanging.Hanging")
    ids = prompt("hanging store")
    handle = published(v12_engine, ids)
    cold = engine.cold(ids)

    (engine.run_dir / FLAG).touch()
    saving = engine.cold(ids, publish=new_handle())
    assert saving.known.publish_failure == "the store moved no block for 1 s", "with nobody asking meanwhile"
    assert (saving.status, saving.tokens) == (200, cold.tokens)
    (engine.run_dir / FLAG).unlink()
    wait_until_it_carries(engine, ids, handle)

    (engine.run_dir / FLAG).touch()
    loading = engine.cold(ids, offer=handle)
    assert loading.status == 500
    assert refusal_of(loading).reason is RefusalReason.STORE_UNREACHABLE
    offered, silent = engine.cold(ids, offer=handle), engine.cold(ids, publish=new_handle())
    assert refusal_of(offered).reason is RefusalReason.STORE_UNREACHABLE
    assert silent.known.publish_failure == "the store does not answer"
    for reply in (offered, silent, engine.cold(ids)):
        assert (reply.status, reply.tokens, reply.logprobs) == (200, cold.tokens, cold.logprobs)

    (engine.run_dir / FLAG).unlink()
    again = wait_until_it_carries(engine, ids, handle)
    assert (again.tokens, again.logprobs) == (cold.tokens, cold.logprobs)
    assert again.known.published is not None
    engine_hall.stop(engine)
