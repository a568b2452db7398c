"""Copies beside a device that works by itself: none is taken for done before it is, and none comes before what it waits for."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from service.domain.artifact import BootId
from service.domain.errors import InvalidInput
from service.domain.evidence import Loaded, Published
from tests.workers.kv_connector.lazy_device import LazyDevice
from tests.workers.kv_connector.paged_fakes import Side, load_job, manifest_of, save, side
from workers.kv_connector.devices import Cuda, Host, device_of
from workers.kv_connector.jobs import Jobs
from workers.kv_connector.loading import Loader
from workers.kv_connector.paged import PagedBlocks
from workers.kv_connector.saving import Saver
from workers.kv_connector.worker import WorkerSide

HANDLE = "kv_0123456789"


def lazy(where: Path, *, seed: int = 0) -> tuple[Side, LazyDevice]:
    """One engine's cache on such a device."""
    host, device = side(where, seed=seed), LazyDevice()
    paged = PagedBlocks(host.paged.own, host.paged.tensors, host.caches, device)
    loader, saver = Loader(host.store, paged), Saver(host.store, paged, BootId(f"boot_{seed}"))
    return replace(host, paged=paged, loader=loader, saver=saver), device


def assert_carried(reader: Side, writer: Side) -> None:
    for name, cache in reader.caches.items():
        for source, target in zip((5, 1, 3), (0, 7, 2), strict=True):
            assert torch.equal(cache[target], writer.caches[name][source])


@pytest.mark.parametrize("writes", ["host", "device"])
@pytest.mark.parametrize("reads", ["host", "device"])
def test_kv_of_a_device_and_of_a_host_are_the_same_bytes(tmp_path: Path, writes: str, reads: str) -> None:
    writer = side(tmp_path) if writes == "host" else lazy(tmp_path)[0]
    reader = side(tmp_path, seed=1) if reads == "host" else lazy(tmp_path, seed=1)[0]
    assert isinstance(save(writer, HANDLE, mark=0), Published)
    assert isinstance(reader.loader.load(load_job(manifest_of(reader, HANDLE)), 0), Loaded)
    assert_carried(reader, writer)


def test_what_is_saved_is_what_the_device_had_computed_by_then(tmp_path: Path) -> None:
    """The step that ended the request is still queued when its KV is to be saved; the next step's work is not waited for."""
    writer, device = lazy(tmp_path)
    wanted = {name: torch.full_like(cache[5], 7.0) for name, cache in writer.caches.items()}
    device.computing.append(lambda: [cache[5].fill_(7.0) for cache in writer.caches.values()])
    mark = device.mark()
    device.computing.append(lambda: pytest.fail("it waited for later work"))
    assert isinstance(save(writer, HANDLE, mark=mark), Published)
    reader = side(tmp_path, seed=1)
    reader.loader.load(load_job(manifest_of(reader, HANDLE)), None)
    for name, cache in reader.caches.items():
        assert torch.equal(cache[0], wanted[name])


@pytest.fixture
def bound() -> Iterator[set[int]]:
    """The test's thread on one core, as vLLM binds its worker; gives those of the process that started this one."""
    before, parents = os.sched_getaffinity(0), os.sched_getaffinity(os.getppid())
    if len(parents) < 2:
        pytest.skip("on one core there is nothing to leave")
    os.sched_setaffinity(0, {min(before)})
    yield parents
    os.sched_setaffinity(0, before)


def test_transfers_leave_the_cores_that_vllm_bound_its_worker_to(tmp_path: Path, bound: set[int]) -> None:
    """Or saving and loading would run on the core of the forward pass, however many there are."""
    engine, cores = side(tmp_path), set()
    save(engine, HANDLE)
    job = load_job(manifest_of(engine, HANDLE))
    check = engine.store.read_block

    def noted(*given: object) -> object:
        cores.add(frozenset(os.sched_getaffinity(0)))
        return check(*given)  # type: ignore[arg-type]

    engine.store.read_block = noted  # type: ignore[method-assign,assignment]
    worker = WorkerSide(engine.paged, engine.loader, engine.saver)
    worker.start(Jobs(loads=(job,)))
    while not (settled := worker.settled(idle=True)).loaded:
        continue
    worker.shutdown()
    assert isinstance(settled.loaded["r"], Loaded)
    assert cores == {frozenset(bound)}
    assert len(os.sched_getaffinity(0)) == 1, "the forward pass stays where it was"


def test_each_kind_of_device_is_known_or_refused() -> None:
    assert isinstance(device_of(torch.empty(1)), Host)
    with pytest.raises(InvalidInput, match="of kind 'meta' is not carried"):
        device_of(torch.empty(1, device="meta"))


def test_a_copy_waits_for_the_mark_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it can be told without one: in which order CUDA is asked for what."""
    asked: list[object] = []

    class Stream:
        def __init__(self, device: object) -> None:
            asked.append(("stream", device))

        def wait_event(self, event: object) -> None:
            asked.append(("wait", event))

        def synchronize(self) -> None:
            asked.append("synchronize")

        def __enter__(self) -> None:
            asked.append("enter")

        def __exit__(self, *_: object) -> None:
            asked.append("exit")

    class Event:
        def record(self, stream: object) -> None:
            asked.append(("record", stream))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the model's on {device}")
    where = torch.device("cuda", 1)
    cuda = Cuda(where)
    mark = cuda.mark()
    with cuda.copies(mark) as finish:
        asked.append("copy")
        finish()
    assert asked == [
        ("record", "the model's on cuda:1"),
        ("stream", where),
        ("wait", mark),
        "enter",
        "copy",
        "synchronize",
        "exit",
    ]
