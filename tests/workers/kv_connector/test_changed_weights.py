"""Weights that are changed in place, seen from the scheduler side: nothing of before is computed on, and nothing of after is shared."""

from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from tests.domain.descriptors import V12
from tests.workers.kv_connector.paged_fakes import SIZE, save, side
from tests.workers.kv_connector.scenes import (
    HANDLE,
    Scene,
    loaded,
    promised,
    request,
    scheduler_side,
)
from workers.kv_connector.counters import Count, read_counters
from workers.kv_connector.jobs import WEIGHTS_CHANGED, Outcomes
from workers.kv_connector.reports import KnownIdentity


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    save(side(tmp_path / "kv"), HANDLE)
    return Scene(tmp_path, scheduler_side(tmp_path))


def change_weights(scene: Scene) -> None:
    """As when someone calls `reload_weights` on the worker."""
    changes = scene.scheduler._weight_changes + 1
    scene.scheduler.watch(lambda: changes)
    scene.scheduler.arrived(request("whoever comes next"))


def test_once_its_weights_changed_in_place_it_is_nobody_knows_what(scene: Scene) -> None:
    before = request("turn.1", offer=HANDLE, publish="kv_00000000aa")
    scene.scheduler.arrived(before)
    assert scene.scheduler.matched(before, 0) == 3 * SIZE
    change_weights(scene)
    assert scene.scheduler.matched(before, 0) == 0
    refusal = scene.evidence().refusal
    assert refusal is not None
    assert (refusal.reason, refusal.artifact_revision) == (RefusalReason.REVISION_UNKNOWN, V12.digest)
    assert scene.evidence().revision is None, "whoever takes the answer for one of v12 is told"
    assert scene.scheduler.finished(before, list(range(9))) is False
    assert scene.evidence().publish_failure == WEIGHTS_CHANGED
    after = request("turn.2", offer=HANDLE, publish="kv_00000000bb")
    assert scene.scheduler.matched(after, 0) == 0
    refusal = scene.evidence("turn.2").refusal
    assert refusal is not None
    assert (refusal.reason, refusal.detail) == (RefusalReason.REVISION_UNKNOWN, WEIGHTS_CHANGED)
    assert scene.scheduler.finished(after, list(range(9))) is False
    identity = KnownIdentity(scene.root / "run").read()
    assert identity == {"boot": "boot_x", "revision": None, "error": WEIGHTS_CHANGED}
    assert read_counters(scene.root / "run")[Count.WEIGHT_CHANGES, None] == 1


def test_a_save_that_is_the_first_to_see_it_takes_the_revision_back(scene: Scene) -> None:
    req = request(publish="kv_00000000aa")
    scene.scheduler.arrived(req)
    scene.scheduler.matched(req, 0)
    assert scene.scheduler.finished(req, list(range(9))) is True
    assert scene.evidence().revision == V12.digest
    scene.scheduler.learned(Outcomes({}, {req.request_id: WEIGHTS_CHANGED}))
    assert (scene.evidence().revision, scene.evidence().publish_failure) == (None, WEIGHTS_CHANGED)


def test_what_arrived_before_they_changed_and_is_decided_after_is_refused_too(scene: Scene) -> None:
    req = request(offer=HANDLE)
    scene.scheduler.arrived(req)
    change_weights(scene)
    assert scene.scheduler.matched(req, 0) == 0
    refusal = scene.evidence().refusal
    assert refusal is not None
    assert (refusal.reason, refusal.detail) == (RefusalReason.REVISION_UNKNOWN, WEIGHTS_CHANGED)


def test_after_each_change_of_its_weights_local_kv_has_other_names(scene: Scene) -> None:
    salts = []
    for index in range(3):
        req = request(f"turn.{index}")
        scene.scheduler.arrived(req)
        again = request(f"turn.{index}.again")
        scene.scheduler.arrived(again)
        assert again.cache_salt == req.cache_salt
        salts.append(req.cache_salt)
        change_weights(scene)
    assert len(set(salts)) == 3
    other = scheduler_side(scene.root)
    other.watch(lambda: 1)
    req = request("of another boot")
    other.arrived(req)
    assert V12.digest not in req.cache_salt


def test_the_weights_are_looked_at_before_a_request_is_looked_up_anywhere(scene: Scene) -> None:
    scene.scheduler.watch(lambda: 1)
    req = request()
    scene.scheduler.arrived(req)
    assert V12.digest not in req.cache_salt


def test_weights_that_cannot_be_looked_at_leave_a_request_to_itself(scene: Scene) -> None:
    def fail() -> int:
        raise RuntimeError("CUDA error")

    scene.scheduler.watch(fail)
    salts = set()
    for index in range(2):
        req = request(f"turn.{index}")
        with pytest.raises(RuntimeError):
            scene.scheduler.arrived(req)
        salts.add(req.cache_salt)
    assert len(salts) == 2


def test_a_request_that_ran_while_the_weights_changed_is_not_said_to_be_of_the_old_ones(scene: Scene) -> None:
    req = request(publish="kv_00000000aa")
    scene.scheduler.arrived(req)
    scene.scheduler.matched(req, 0)
    scene.scheduler.watch(lambda: 1)
    assert scene.scheduler.finished(req, list(range(9))) is False
    assert (scene.evidence().revision, scene.evidence().publish_failure) == (None, WEIGHTS_CHANGED)


def test_each_change_is_heeded_once(scene: Scene) -> None:
    scene.scheduler.watch(lambda: 1)
    for index in range(3):
        scene.scheduler.arrived(request(f"turn.{index}"))
    assert read_counters(scene.root / "run")[Count.WEIGHT_CHANGES, None] == 1


def test_what_was_loaded_before_the_weights_changed_is_not_published_again(scene: Scene) -> None:
    req = request(offer=HANDLE, publish="kv_00000000aa")
    job = promised(scene, req)
    scene.scheduler.learned(Outcomes({req.request_id: loaded(job)}, {}))
    scene.scheduler.watch(lambda: 1)
    assert scene.scheduler.finished(req, list(range(9))) is False
    assert scene.evidence().publish_failure == WEIGHTS_CHANGED
    assert (scene.evidence().revision, scene.evidence().loaded) == (None, loaded(job))
