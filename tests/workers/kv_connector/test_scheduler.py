"""The scheduler side as vLLM calls it: in any order, again and again, and never with a chance to raise."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.domain.artifact import MadeBy, RefusalReason
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12, V13
from tests.workers.kv_connector.paged_fakes import SIZE, manifest_of, save, side
from tests.workers.kv_connector.scenes import (
    HANDLE,
    Scene,
    loaded,
    promised,
    refused,
    request,
    scheduler_side,
)
from workers.kv_connector.counters import Count, read_counters
from workers.kv_connector.hash_root import HashRoot
from workers.kv_connector.hooks import never_raises
from workers.kv_connector.jobs import Outcomes


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    save(side(tmp_path / "kv"), HANDLE)
    return Scene(tmp_path, scheduler_side(tmp_path))


def test_asking_again_gives_the_same_answer_and_reads_the_store_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    req = request(offer=HANDLE)
    assert scene.scheduler.matched(req, 0) == 3 * SIZE
    monkeypatch.setattr(scene.scheduler._store, "read_manifest", lambda *_: pytest.fail("read again"))
    assert scene.scheduler.matched(req, 0) == 3 * SIZE
    assert scene.scheduler.matched(req, SIZE) == 2 * SIZE
    assert scene.scheduler.matched(req, 4 * SIZE) == 0
    assert scene.scheduler.jobs().loads == ()


def test_a_load_covers_what_was_promised_beyond_the_engines_own(scene: Scene) -> None:
    req = request(offer=HANDLE)
    tokens = scene.scheduler.matched(req, SIZE)
    scene.scheduler.allocated(req, [10, 11, 12, 13], tokens)
    (job,) = scene.scheduler.jobs().loads
    assert job.block_ids == (11, 12)
    assert job.blocks == manifest_of(side(scene.root / "kv"), HANDLE).blocks[1:]


def test_a_load_that_was_refused_is_never_promised_again(scene: Scene) -> None:
    """Or an engine that recomputes after a failed load would load for ever."""
    req = request(offer=HANDLE, publish="kv_00000000aa")
    job = promised(scene, req)
    scene.scheduler.learned(Outcomes({req.request_id: refused(job)}, {}))
    assert scene.scheduler.matched(req, 0) == 0
    assert scene.evidence().refusal == refused(job)
    assert scene.evidence().refused_tokens == 3 * SIZE
    assert scene.scheduler.finished(req, list(range(10, 20))) is False
    assert scene.evidence().publish_failure == "this attempt was promised KV that was then refused"


def test_a_refusal_is_recorded_also_where_the_request_ended_first(scene: Scene) -> None:
    req = request(offer=HANDLE)
    job = promised(scene, req)
    req.status = SimpleNamespace(name="FINISHED_ERROR")
    assert scene.scheduler.finished(req, []) is False
    scene.scheduler.learned(Outcomes({req.request_id: refused(job)}, {}))
    assert scene.evidence().refusal == refused(job)
    assert scene.scheduler._tracked == {}


@pytest.mark.parametrize(
    "status", ["FINISHED_ABORTED", "FINISHED_ERROR", "FINISHED_IGNORED", "FINISHED_REPETITION"]
)
def test_only_a_request_that_ended_well_is_published(scene: Scene, status: str) -> None:
    req = request(publish="kv_00000000aa")
    req.status = SimpleNamespace(name=status)
    assert scene.scheduler.finished(req, list(range(10))) is False
    assert scene.evidence().publish_failure == f"the request ended as {status}"
    assert scene.scheduler.jobs().saves == ()


@pytest.mark.parametrize(("generated", "blocks"), [(1, 3), (2, 4), (SIZE + 1, 4), (SIZE + 2, 5)], ids=str)
def test_the_token_sampled_last_is_never_saved(scene: Scene, generated: int, blocks: int) -> None:
    req = request(publish="kv_00000000aa", generated=generated)
    assert scene.scheduler.finished(req, list(range(10, 20))) is True
    (job,) = scene.scheduler.jobs().saves
    assert [block.block_id for block in job.blocks] == list(range(10, 10 + blocks))


def test_no_more_is_saved_than_the_engine_still_has(scene: Scene) -> None:
    """As when it was preempted in the step that ended it."""
    req = request(publish="kv_00000000aa")
    assert scene.scheduler.finished(req, []) is False
    assert scene.evidence().publish_failure == "it has no whole block of computed tokens"


def test_what_was_loaded_is_not_written_again(scene: Scene) -> None:
    req = request(offer=HANDLE, publish="kv_00000000aa", generated=2)
    job = promised(scene, req)
    scene.scheduler.learned(Outcomes({req.request_id: loaded(job)}, {}))
    scene.scheduler.finished(req, list(range(10, 20)))
    (saving,) = scene.scheduler.jobs().saves
    assert [block.stored for block in saving.blocks] == [*job.blocks, None]
    assert [block.made_by for block in saving.blocks] == [MadeBy.PREFILL] * 3 + [MadeBy.DECODE]


def test_blocks_of_unknown_origin_are_not_called_prefilled(scene: Scene) -> None:
    first = request("turn.1", publish="kv_00000000aa", generated=2)
    scene.scheduler.matched(first, SIZE)
    scene.scheduler.finished(first, list(range(10, 20)))
    second = request("turn.2", publish="kv_00000000bb", generated=2)
    scene.scheduler.matched(second, 3 * SIZE)
    scene.scheduler.finished(second, list(range(10, 20)))
    for job in scene.scheduler.jobs().saves:
        made = [block.made_by for block in job.blocks]
        assert made == [MadeBy.DECODE, MadeBy.PREFILL, MadeBy.PREFILL, MadeBy.DECODE]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mm_features": [object()]}, "images"),
        ({"prompt_embeds": object()}, "embeddings"),
        ({"pooling_params": object()}, "pooling"),
        ({"resumable": True}, "streamed input"),
    ],
)
def test_requests_that_tokens_do_not_describe_are_neither_read_nor_published(
    scene: Scene, change: dict[str, Any], words: str
) -> None:
    req = request(offer=HANDLE, publish="kv_00000000aa")
    vars(req).update(change)
    assert scene.scheduler.matched(req, 0) == 0
    refusal = scene.evidence().refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.LAYOUT_UNSUPPORTED
    assert words in refusal.detail
    assert not scene.scheduler.finished(req, list(range(9)))
    assert words in str(scene.evidence().publish_failure)


def test_a_layout_that_is_not_carried_is_refused(scene: Scene) -> None:
    scheduler = scheduler_side(scene.root, unsupported="2 KV cache groups are not carried")
    assert scheduler.matched(request(offer=HANDLE), 0) == 0
    refusal = scene.evidence().refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.LAYOUT_UNSUPPORTED


@pytest.mark.parametrize(
    ("own", "reason"), [(None, RefusalReason.REVISION_UNKNOWN), (V13, RefusalReason.REVISION_MISMATCH)]
)
def test_an_engine_that_is_not_the_artifacts_revision_refuses(
    scene: Scene, own: Descriptor | None, reason: RefusalReason
) -> None:
    scheduler = scheduler_side(scene.root, own)
    assert scheduler.matched(request(offer=HANDLE), 0) == 0
    refusal = scene.evidence().refusal
    assert refusal is not None
    assert refusal.reason is reason
    assert refusal.artifact_revision == V12.digest
    assert scene.evidence().refused_tokens == 3 * SIZE


def test_of_an_artifact_that_nobody_could_read_no_token_is_said_to_be_refused(scene: Scene) -> None:
    assert scene.scheduler.matched(request(offer="kv_00000000ff"), 0) == 0
    assert scene.evidence().refusal is not None
    assert scene.evidence().refused_tokens == 0


@pytest.mark.parametrize("lease_s", [0, -1, "60", True, None])
def test_a_lease_that_is_no_time_is_not_published(scene: Scene, lease_s: object) -> None:
    assert not scene.scheduler.finished(request(publish="kv_00000000aa", lease_s=lease_s), list(range(9)))
    assert scene.evidence().publish_failure == "its lease is not a positive number of seconds"


@pytest.mark.parametrize(
    "params", [None, {}, {"everturn": None}, {"everturn": "x"}, {"everturn": {"attempt": 7, "tenant": "t"}}]
)
def test_requests_that_do_not_speak_to_us_are_rooted_apart_from_every_tenant(
    scene: Scene, params: Any
) -> None:
    req, tenants = request(), request("turn.2", tenant="-")
    req.kv_transfer_params = params
    scene.scheduler.arrived(req)
    scene.scheduler.arrived(tenants)
    assert V12.digest in req.cache_salt
    assert req.cache_salt != tenants.cache_salt
    assert req.block_hashes == []
    assert scene.scheduler.matched(req, 0) == 0
    assert scene.scheduler.finished(req, list(range(9))) is False


def test_tenants_get_salts_of_their_own_whatever_the_caller_chose(scene: Scene) -> None:
    salts = set()
    for index, (tenant, salt) in enumerate([("a", None), ("b", None), ("a", "x"), ("b", "x")]):
        req = request(f"turn.{index}", tenant=tenant)
        req.cache_salt = salt
        scene.scheduler.arrived(req)
        assert req.block_hashes == []
        salts.add(req.cache_salt)
    assert len(salts) == 4


def test_revisions_get_salts_of_their_own_and_the_same_revision_the_same(scene: Scene) -> None:
    salts = {}
    for name, own in (("v12", V12), ("v12 again", V12), ("v13", V13)):
        req = request()
        scheduler_side(scene.root, own).arrived(req)
        salts[name] = req.cache_salt
    assert salts["v12"] == salts["v12 again"] != salts["v13"]


def test_an_unmeasured_engine_shares_block_hashes_with_no_other_boot() -> None:
    one, other = HashRoot("boot one"), HashRoot("boot two")
    assert one.salt("a", None) != other.salt("a", None)
    one.identify(V12.digest)
    other.identify(V12.digest)
    assert one.salt("a", None) == other.salt("a", None)


def test_a_request_that_cannot_be_read_shares_block_hashes_with_nobody(scene: Scene) -> None:
    salts = set()
    for index in range(2):
        req = request(f"turn.{index}")
        req.kv_transfer_params = ["not what vLLM gives"]
        with pytest.raises(AttributeError):
            scene.scheduler.arrived(req)
        assert req.block_hashes == []
        salts.add(req.cache_salt)
    assert len(salts) == 2
    assert all(V12.digest in salt for salt in salts)


def test_what_happened_is_counted_once(scene: Scene) -> None:
    hit = request("hit", offer=HANDLE)
    scene.scheduler.learned(Outcomes({hit.request_id: loaded(promised(scene, hit))}, {}))
    scene.scheduler.finished(hit, [])
    broken = request("broken", offer=HANDLE, publish="kv_00000000aa")
    scene.scheduler.learned(Outcomes({broken.request_id: refused(promised(scene, broken))}, {}))
    scene.scheduler.matched(broken, 0)
    scene.scheduler.finished(broken, [])
    unknown = request("unknown", offer="kv_00000000ff")
    scene.scheduler.matched(unknown, 0)
    scene.scheduler.matched(unknown, 0)
    scene.scheduler.finished(unknown, [])
    scene.scheduler.finished(request("plain"), [])
    counted = {series: number for series, number in read_counters(scene.root / "run").items() if number}
    assert counted == {
        (Count.HITS, None): 1,
        (Count.HIT_TOKENS, None): 3 * SIZE,
        (Count.HIT_BYTES, None): 1,
        (Count.MISSES, None): 1,
        (Count.REFUSALS, RefusalReason.BLOCK_MISSING): 1,
        (Count.REFUSALS, RefusalReason.MANIFEST_MISSING): 1,
        (Count.PUBLISH_FAILURES, None): 1,
    }


def test_after_a_fault_of_ours_the_request_is_refused_what_it_was_offered(scene: Scene) -> None:
    req = request(offer=HANDLE, publish="kv_00000000aa")
    scene.scheduler.matched(req, 0)
    scene.scheduler.broke(req, RuntimeError("ours"), waiting_for_load=True)
    assert scene.scheduler.jobs().lost == (req.request_id,)
    assert scene.scheduler.matched(req, 0) == 0
    refusal = scene.evidence().refusal
    assert refusal is not None
    assert (refusal.reason, refusal.detail) == (RefusalReason.INTERNAL_ERROR, "RuntimeError: ours")


def test_a_save_is_withdrawn_when_its_blocks_go_back_to_the_engine(scene: Scene) -> None:
    req = request(publish="kv_00000000aa")
    scene.scheduler.finished(req, list(range(9)))
    scene.scheduler.broke(req, RuntimeError("ours"))
    assert scene.scheduler.jobs().saves == ()
    assert scene.evidence().publish_failure == "RuntimeError: ours"
    assert scene.scheduler._tracked == {}


def test_a_report_that_cannot_be_written_costs_only_itself(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scene.scheduler._reports, "write_attempt", full)
    req = request(offer=HANDLE, publish="kv_00000000aa")
    assert scene.scheduler.matched(req, 0) == 3 * SIZE
    assert scene.scheduler.finished(req, list(range(9))) is True


def test_a_hook_that_fails_gives_its_harmless_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Hooked:
        @never_raises(lambda _self, error, number: f"{error} {number}")
        def hook(self, _number: int) -> str:
            raise ValueError("broken")

    assert Hooked().hook(7) == "broken 7"
    assert "its hook hook failed" in caplog.text
