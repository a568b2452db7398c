"""What waits to be saved is bounded, and while the store hangs nothing is."""

from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from tests.workers.kv_connector.paged_fakes import SIZE, save, side
from tests.workers.kv_connector.scenes import (
    HANDLE,
    Scene,
    request,
    scheduler_side,
)
from workers.kv_connector.counters import Count, read_counters
from workers.kv_connector.jobs import Outcomes


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    save(side(tmp_path / "kv"), HANDLE)
    return Scene(tmp_path, scheduler_side(tmp_path))


def test_what_waits_to_be_saved_never_pins_more_than_half_of_the_engines_blocks(scene: Scene) -> None:
    first, second = request("turn.1", publish="kv_00000000aa"), request("turn.2", publish="kv_00000000bb")
    assert scene.scheduler.finished(first, list(range(20)))
    assert not scene.scheduler.finished(second, list(range(20, 33)))
    assert scene.evidence("turn.2").publish_failure == (
        "20 of the engine's 64 KV blocks already wait to be saved, and with its 13 they would be more than 32"
    )
    counted = read_counters(scene.root / "run")
    assert (counted[Count.PUBLISH_DROPPED, None], counted[Count.PUBLISH_FAILURES, None]) == (1, 1)
    assert [job.request_id for job in scene.scheduler.jobs().saves] == [first.request_id]
    third = request("turn.3", publish="kv_00000000cc")
    assert scene.scheduler.finished(third, list(range(20, 32)))


def test_blocks_that_are_shared_count_once_and_count_until_the_last_who_needs_them_is_saved(
    scene: Scene,
) -> None:
    shared = list(range(30))
    first, second = request("turn.1", publish="kv_00000000aa"), request("turn.2", publish="kv_00000000bb")
    assert scene.scheduler.finished(first, shared)
    assert scene.scheduler.finished(second, [*shared, 30, 31])
    scene.scheduler.learned(Outcomes({}, {first.request_id: "the store refused"}))
    assert not scene.scheduler.finished(request("turn.3", publish="kv_00000000cc"), [40, 41, 42])
    scene.scheduler.learned(Outcomes({}, {second.request_id: "the store refused"}))
    assert scene.scheduler.finished(request("turn.4", publish="kv_00000000dd"), [40, 41, 42])


def test_while_the_store_hangs_nothing_is_offered_and_nothing_saved_and_then_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = scene.scheduler._store.read_manifest
    monkeypatch.setattr(scene.scheduler._store, "read_manifest", lambda *_: pytest.fail("asked"))
    scene.scheduler.learned(Outcomes({}, {}, stalled=True))
    req = request(offer=HANDLE, publish="kv_00000000aa")
    assert scene.scheduler.matched(req, 0) == 0
    refusal = scene.evidence().refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.STORE_UNREACHABLE
    assert scene.scheduler.finished(req, list(range(9))) is False
    assert scene.evidence().publish_failure == "the store does not answer"
    assert read_counters(scene.root / "run")[Count.PUBLISH_DROPPED, None] == 1
    monkeypatch.setattr(scene.scheduler._store, "read_manifest", read)
    scene.scheduler.learned(Outcomes({}, {}))
    again = request("turn.2", offer=HANDLE, publish="kv_00000000bb")
    assert scene.scheduler.matched(again, 0) == 3 * SIZE
    assert scene.scheduler.finished(again, list(range(9))) is True
