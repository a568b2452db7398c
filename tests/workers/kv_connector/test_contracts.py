"""Under a contract the consumer reads another revision's KV; it judges by itself, on both sides, and fails closed."""

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from service.domain.artifact import BootId, RefusalReason, Refused
from service.domain.contract import Contract
from service.domain.evidence import Evidence, Loaded, Refusal
from service.domain.revision import Descriptor
from tests.domain.descriptors import V12, V13, with_kv
from tests.workers.kv_connector.paged_fakes import SIZE, Side, load_job, manifest_of, save, side
from tests.workers.kv_connector.scenes import HANDLE, request
from workers.kv_connector.contract_folder import ContractFolder
from workers.kv_connector.counters import Counters
from workers.kv_connector.hash_root import HashRoot
from workers.kv_connector.jobs import Outcomes, Waiver
from workers.kv_connector.reports import Reports, read_attempt
from workers.kv_connector.scheduler import SchedulerSide

NEWER = with_kv(engine_version="0.33.0")
HOUR_MS = 3_600_000


def terms(**changes: Any) -> Contract:
    now_ms = time.time_ns() // 1_000_000
    made = Contract(
        reader=NEWER.digest,
        producer=V12.digest,
        waived=("engine_version",),
        reason="tested",
        approved_by="ada",
        approved_ms=now_ms,
        ends_ms=now_ms + HOUR_MS,
    )
    return replace(made, **changes)


def give(folder: Path, contract: Contract, *, name: str | None = None) -> str:
    folder.mkdir(exist_ok=True)
    (folder / f"{name or contract.id}.json").write_text(json.dumps(contract.to_json()))
    return name or contract.id


class Scene:
    """KV of V12 in the store, and an engine that measured itself as `own`."""

    def __init__(self, root: Path, own: Descriptor = NEWER, *, folder: bool = True) -> None:
        self.root, self.folder = root, root / "contracts"
        self.writer = side(root / "kv")
        save(self.writer, HANDLE)
        self.reader = side(root / "kv", own=own, seed=1)
        self.scheduler = SchedulerSide(
            store=self.reader.store,
            reports=Reports(root / "run"),
            root=HashRoot("nonce"),
            counters=Counters(root / "run"),
            boot=BootId("boot_x"),
            unsupported=None,
            kv_blocks=64,
            contracts=ContractFolder(self.folder if folder else None),
        )
        self.scheduler.identify(own, self.reader.paged.tensors)

    def refusal(self, req: Any) -> Refusal:
        assert self.scheduler.matched(req, 0) == 0
        refusal = self.evidence().refusal
        assert refusal is not None
        return refusal

    def evidence(self) -> Evidence:
        found = read_attempt(self.root / "run", "turn.1")
        assert found is not None
        return Evidence.from_json(found[0])


def block(of: Side, block_id: int) -> list[torch.Tensor]:
    return [cache[block_id] for cache in of.caches.values()]


def test_a_permitted_artifact_is_promised_loaded_and_shown_in_the_evidence(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    contract = give(scene.folder, terms())
    req = request(offer=HANDLE, contract=contract)
    assert scene.scheduler.matched(req, 0) == 3 * SIZE
    scene.scheduler.allocated(req, [0, 7, 2, 3], 3 * SIZE)
    (job,) = scene.scheduler.jobs().loads
    outcome = scene.reader.loader.load(job, None)
    assert isinstance(outcome, Loaded)
    assert (outcome.contract, outcome.revision) == (contract, V12.digest)
    for theirs, ours in zip((5, 1, 3), (0, 7, 2), strict=True):
        for written, read in zip(block(scene.writer, theirs), block(scene.reader, ours), strict=True):
            assert torch.equal(written, read)
    scene.scheduler.learned(Outcomes({req.request_id: outcome}, {}))
    assert scene.evidence().loaded == outcome


def test_what_was_computed_on_another_revisions_kv_is_never_published(tmp_path: Path) -> None:
    """Or it would be this revision's own from then on, past the contract's end."""
    scene = Scene(tmp_path)
    req = request(offer=HANDLE, publish="kv_00000000aa", contract=give(scene.folder, terms()))
    tokens = scene.scheduler.matched(req, 0)
    scene.scheduler.allocated(req, list(range(10)), tokens)
    (job,) = scene.scheduler.jobs().loads
    scene.scheduler.learned(Outcomes({req.request_id: scene.reader.loader.load(job, None)}, {}))
    assert not scene.scheduler.finished(req, list(range(10)))
    assert scene.scheduler.jobs().saves == ()
    assert "under a contract" in str(scene.evidence().publish_failure)


def test_its_kv_stays_out_of_what_other_requests_find_in_the_engines_prefix_cache(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    contract = give(scene.folder, terms())
    salts = set()
    for attempt, named in (("a.1", None), ("a.2", contract), ("a.3", contract)):
        req = request(attempt, offer=HANDLE, contract=named)
        scene.scheduler.arrived(req)
        salts.add(req.cache_salt)
    plain = request("a.4")
    scene.scheduler.arrived(plain)
    assert len(salts) == 3
    assert plain.cache_salt in salts


def test_its_own_revisions_kv_needs_no_contract_and_is_not_called_contracted(tmp_path: Path) -> None:
    scene = Scene(tmp_path, own=V12)
    req = request(offer=HANDLE, contract="ctr_" + "0" * 64)
    assert scene.scheduler.matched(req, 0) == 3 * SIZE
    scene.scheduler.allocated(req, [0, 7, 2], 3 * SIZE)
    (job,) = scene.scheduler.jobs().loads
    assert job.waiver is None


def test_a_contract_that_is_not_named_is_not_used(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    give(scene.folder, terms())
    refusal = scene.refusal(request(offer=HANDLE))
    assert (refusal.reason, refusal.differing) == (RefusalReason.REVISION_MISMATCH, ("engine_version",))


def test_an_engine_that_was_given_no_folder_honours_none(tmp_path: Path) -> None:
    scene = Scene(tmp_path, folder=False)
    refusal = scene.refusal(request(offer=HANDLE, contract=give(scene.folder, terms())))
    assert refusal.reason is RefusalReason.CONTRACT_INVALID
    assert "--contracts" in refusal.detail


def test_a_contract_that_the_service_made_up_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.folder.mkdir()
    refusal = scene.refusal(request(offer=HANDLE, contract=terms().id))
    assert refusal.reason is RefusalReason.CONTRACT_INVALID
    assert "not among" in refusal.detail


def test_an_expired_contract_is_refused_by_the_engines_own_clock(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    contract = give(scene.folder, terms(ends_ms=time.time_ns() // 1_000_000))
    assert scene.refusal(request(offer=HANDLE, contract=contract)).reason is RefusalReason.CONTRACT_EXPIRED


@pytest.mark.parametrize(
    ("own", "changes", "words"),
    [
        (V13, {"reader": V13.digest, "waived": ("weights",)}, "weights can never be waived"),
        (NEWER, {"waived": ()}, "does not waive engine_version"),
        (NEWER, {"reader": V13.digest}, "lets"),
        (NEWER, {"producer": V13.digest}, "is about KV of"),
    ],
)
def test_terms_that_do_not_fit_what_the_engine_measured_are_refused(
    tmp_path: Path, own: Descriptor, changes: dict[str, Any], words: str
) -> None:
    scene = Scene(tmp_path, own=own)
    refusal = scene.refusal(request(offer=HANDLE, contract=give(scene.folder, terms(**changes))))
    assert refusal.reason is RefusalReason.CONTRACT_INVALID
    assert words in refusal.detail


def test_a_file_whose_terms_were_changed_is_refused(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    contract = give(scene.folder, terms(ends_ms=4_000_000_000_000), name=terms().id)
    refusal = scene.refusal(request(offer=HANDLE, contract=contract))
    assert "other terms than its name says" in refusal.detail


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b"\xff", b" " * (1 << 17)], ids=len)
def test_a_file_that_is_no_contract_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / f"{terms().id}.json").write_bytes(data)
    assert isinstance(ContractFolder(tmp_path).find(terms().id), Refused)


@pytest.mark.parametrize("name", ["../../etc/passwd", "ctr_x\0", 7, {}, "ctr_" + "a" * 10_000])
def test_a_name_that_is_none_is_refused_before_anything_is_read(tmp_path: Path, name: object) -> None:
    assert isinstance(ContractFolder(tmp_path).find(name), Refused)


# The worker side alone, as if the scheduler side had let everything through


def test_the_worker_reads_nothing_of_another_revision_without_a_waiver(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    job = load_job(manifest_of(scene.writer, HANDLE))
    outcome = scene.reader.loader.load(job, None)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is RefusalReason.REVISION_MISMATCH


@pytest.mark.parametrize(
    ("contract", "producer", "reason"),
    [
        (terms(ends_ms=1), V12, RefusalReason.CONTRACT_EXPIRED),
        (terms(waived=()), V12, RefusalReason.CONTRACT_INVALID),
        (terms(), V13, RefusalReason.REVISION_MISMATCH),
        (terms(producer=V13.digest), V12, RefusalReason.CONTRACT_INVALID),
    ],
)
def test_the_worker_judges_the_contract_itself(
    tmp_path: Path, contract: Contract, producer: Descriptor, reason: RefusalReason
) -> None:
    scene = Scene(tmp_path)
    before = [tensor.clone() for tensor in block(scene.reader, 0)]
    job = replace(
        load_job(manifest_of(scene.writer, HANDLE)), waiver=Waiver(contract=contract, producer=producer)
    )
    outcome = scene.reader.loader.load(job, None)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is reason
    assert all(torch.equal(a, b) for a, b in zip(before, block(scene.reader, 0), strict=True))


def test_a_contract_that_ends_while_the_blocks_are_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    contract = terms(ends_ms=1_000)
    clock = iter([999, 1_000])
    monkeypatch.setattr(
        "workers.kv_connector.loading.time",
        SimpleNamespace(time_ns=lambda: next(clock) * 1_000_000, monotonic=time.monotonic),
    )
    job = replace(load_job(manifest_of(scene.writer, HANDLE)), waiver=Waiver(contract=contract, producer=V12))
    outcome = scene.reader.loader.load(job, None)
    assert isinstance(outcome, Refusal)
    assert outcome.reason is RefusalReason.CONTRACT_EXPIRED
