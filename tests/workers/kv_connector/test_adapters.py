"""An adapter is its bytes and its scale; whatever the engine may have loaded otherwise has no identity, and shares no KV."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from service.domain import canonical
from service.domain.adapter import effective
from service.domain.artifact import BootId, RefusalReason
from service.domain.errors import InvalidInput
from service.domain.evidence import Evidence, Loaded, Refusal
from tests.domain.descriptors import V12, V13
from tests.workers.kv_connector.paged_fakes import save, side
from tests.workers.kv_connector.scenes import HANDLE, request
from workers.kv_connector.adapters import FILES, Adapters, take_copy
from workers.kv_connector.counters import Counters
from workers.kv_connector.hash_root import HashRoot
from workers.kv_connector.jobs import Outcomes
from workers.kv_connector.reports import Reports, read_attempt
from workers.kv_connector.scheduler import SchedulerSide

OTHER_HANDLE = "kv_9876543210"
V12_DIGEST, ADAPTED_DIGEST = V12.digest, effective(V12, "a" * 64).digest


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRA:
    """As vLLM's LoRARequest."""

    lora_path: str
    lora_name: str = "style"
    lora_int_id: int = 1
    load_inplace: bool = False


def write(folder: Path, weights: bytes = b"A", alpha: float = 16) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": alpha}))
    return folder


def copy(root: Path, weights: bytes = b"A", alpha: float = 16) -> Path:
    return take_copy(write(root / "source", weights, alpha), root / "adapters")


def measured(root: Path, lora: LoRA) -> str:
    return Adapters(root / "adapters").measure(lora)


def test_an_adapter_is_its_weights_and_its_config_and_neither_name_nor_path(tmp_path: Path) -> None:
    one = copy(tmp_path)
    assert take_copy(write(tmp_path / "elsewhere"), tmp_path / "adapters") == one
    assert copy(tmp_path, weights=b"B") != one
    assert copy(tmp_path, alpha=8) != one, "the scale is alpha / r"
    assert copy(tmp_path) == one
    digests = {measured(tmp_path, LoRA(lora_path=str(one), lora_name=name)) for name in ("x", "y")}
    assert digests == {one.name}


def test_without_an_adapter_a_request_is_of_the_engines_own_revision() -> None:
    assert Adapters(None).measure(None) == "none"
    assert effective(V12, "none") is V12


def test_each_adapter_makes_a_revision_of_its_own() -> None:
    digests = {effective(V12, adapter).digest for adapter in ("none", "a" * 64, "b" * 64)}
    assert len(digests) == 3


def test_the_digest_of_a_revision_is_made_once_and_never_taken_for_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapters, make = Adapters(None), Mock(wraps=canonical.digest)
    monkeypatch.setattr(canonical, "digest", make)
    adapted = adapters.of(V12, "a" * 64)
    for _ in range(3):
        assert adapters.digest(V12) == V12_DIGEST
        assert adapters.digest(adapted) == ADAPTED_DIGEST
    assert make.call_count == 2
    assert adapters.digest(V13) == V13.digest, "also where it has the same adapter, which is none"


def test_what_is_overwritten_at_its_path_does_not_reach_the_copy(tmp_path: Path) -> None:
    before = copy(tmp_path)
    write(tmp_path / "source", b"B")
    assert measured(tmp_path, LoRA(lora_path=str(before))) == before.name
    assert [path.read_bytes() for path in sorted(before.iterdir())][1] == b"A"


def test_nothing_but_config_and_weights_is_copied(tmp_path: Path) -> None:
    write(tmp_path / "source")
    (tmp_path / "source" / "adapter_model.bin").write_bytes(b"a pickle")
    assert {path.name for path in copy(tmp_path).iterdir()} == set(FILES)


@pytest.mark.parametrize("missing", FILES)
def test_an_adapter_that_lacks_a_part_is_refused_by_its_name(tmp_path: Path, missing: str) -> None:
    (write(tmp_path / "source") / missing).unlink()
    with pytest.raises(InvalidInput, match=missing):
        take_copy(tmp_path / "source", tmp_path / "adapters")
    assert not (tmp_path / "adapters").exists()


def unknown(adapters: Adapters, lora: LoRA) -> str:
    with pytest.raises(InvalidInput, match="has no identity") as refused:
        adapters.measure(lora)
    return str(refused.value)


def test_a_path_that_others_may_write_identifies_nothing(tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    adapters = Adapters(tmp_path / "adapters")
    assert "--adapter" in unknown(adapters, LoRA(lora_path=str(source)))
    assert "--adapter" in unknown(adapters, LoRA(lora_path=str(tmp_path / "adapters" / ".." / "source")))
    assert "--adapter" in unknown(Adapters(None), LoRA(lora_path=str(copy(tmp_path))))


def test_a_copy_that_was_tampered_with_is_known_no_more(tmp_path: Path) -> None:
    adapters, folder = Adapters(tmp_path / "adapters"), copy(tmp_path)
    lora = LoRA(lora_path=str(folder))
    adapters.measure(lora)
    weights = folder / "adapter_model.safetensors"
    weights.chmod(0o600)
    weights.write_bytes(b"B")
    assert "changed" in unknown(adapters, lora)
    weights.write_bytes(b"A")
    assert "changed" in unknown(adapters, lora), "what was loaded meanwhile is not known"
    weights.write_bytes(b"B")
    assert "does not hold" in unknown(Adapters(tmp_path / "adapters"), lora)


def test_a_file_beside_it_makes_a_copy_unknown(tmp_path: Path) -> None:
    adapters, folder = Adapters(tmp_path / "adapters"), copy(tmp_path)
    adapters.measure(LoRA(lora_path=str(folder)))
    (folder / "adapter_model.bin").write_bytes(b"B")
    assert "changed" in unknown(adapters, LoRA(lora_path=str(folder)))


def test_a_copy_that_is_gone_is_unknown(tmp_path: Path) -> None:
    assert "cannot be read" in unknown(
        Adapters(tmp_path / "adapters"), LoRA(lora_path=str(tmp_path / "adapters" / ("a" * 64)))
    )


@pytest.mark.parametrize("same", ["lora_name", "lora_int_id"])
def test_a_name_or_id_that_has_stood_for_other_bytes_is_unknown_from_then_on(
    tmp_path: Path, same: str
) -> None:
    """vLLM takes two requests of one name, or of one id, for the same adapter, in one batch too."""
    adapters = Adapters(tmp_path / "adapters")
    first = LoRA(lora_path=str(copy(tmp_path)), lora_name="a", lora_int_id=1)
    other = LoRA(lora_path=str(copy(tmp_path, b"B")), lora_name="b", lora_int_id=2)
    assert adapters.measure(first) != adapters.measure(replace(other, lora_name="c", lora_int_id=3))
    clash: dict[str, Any] = {same: getattr(first, same)}
    assert "other bytes" in unknown(adapters, replace(other, **clash))
    assert "other bytes" in unknown(adapters, first)


def test_an_adapter_that_is_reloaded_in_place_is_unknown(tmp_path: Path) -> None:
    assert "in place" in unknown(
        Adapters(tmp_path / "adapters"), LoRA(lora_path=str(copy(tmp_path)), load_inplace=True)
    )


# The scheduler side


class Scene:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.engine = side(root / "kv")
        self.scheduler = SchedulerSide(
            store=self.engine.store,
            reports=Reports(root / "run"),
            root=HashRoot("nonce"),
            counters=Counters(root / "run"),
            boot=BootId("boot_x"),
            unsupported=None,
            kv_blocks=64,
            adapters=Adapters(root / "adapters"),
        )
        self.scheduler.identify(V12, self.engine.paged.tensors)

    def evidence(self, attempt: str) -> Evidence:
        found = read_attempt(self.root / "run", attempt)
        assert found is not None
        return Evidence.from_json(found[0])

    def publish(self, attempt: str, lora: LoRA | None, handle: str) -> Evidence:
        req = lora_request(attempt, lora, publish=handle)
        self.scheduler.matched(req, 0)
        if self.scheduler.finished(req, [5, 1, 3, 4]):
            (job,) = self.scheduler.jobs().saves
            outcome = self.engine.saver.save(job, None)
            self.scheduler.learned(Outcomes({}, {req.request_id: outcome}))
        return self.evidence(attempt)

    def offered(self, attempt: str, lora: LoRA | None, handle: str) -> Loaded | Refusal:
        req = lora_request(attempt, lora, offer=handle)
        tokens = self.scheduler.matched(req, 0)
        if tokens == 0:
            refusal = self.evidence(attempt).refusal
            assert refusal is not None
            return refusal
        self.scheduler.allocated(req, [0, 7, 2, 6], tokens)
        (job,) = self.scheduler.jobs().loads
        return self.engine.loader.load(job, None)


def lora_request(attempt: str, lora: LoRA | None, **kv: Any) -> Any:
    req = request(attempt, **kv)
    req.lora_request = lora
    return req


def test_kv_under_an_adapter_is_read_by_the_same_bytes_under_any_name_and_by_nothing_else(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    one = LoRA(lora_path=str(copy(tmp_path)), lora_name="one", lora_int_id=1)
    renamed = LoRA(lora_path=one.lora_path, lora_name="renamed", lora_int_id=2)
    other = LoRA(lora_path=str(copy(tmp_path, b"B")), lora_name="other", lora_int_id=3)
    scaled = LoRA(lora_path=str(copy(tmp_path, alpha=8)), lora_name="scaled", lora_int_id=4)
    published = scene.publish("p.1", one, HANDLE).published
    assert published is not None
    assert published.revision == effective(V12, Path(one.lora_path).name).digest
    assert isinstance(scene.offered("r.1", one, HANDLE), Loaded)
    assert isinstance(scene.offered("r.2", renamed, HANDLE), Loaded)
    for attempt, lora in (("r.3", other), ("r.4", scaled), ("r.5", None)):
        refusal = scene.offered(attempt, lora, HANDLE)
        assert isinstance(refusal, Refusal)
        assert (refusal.reason, refusal.differing) == (RefusalReason.REVISION_MISMATCH, ("adapter",))


def test_kv_of_the_bare_model_is_not_read_under_an_adapter(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    save(scene.engine, HANDLE)
    refusal = scene.offered("r.1", LoRA(lora_path=str(copy(tmp_path))), HANDLE)
    assert isinstance(refusal, Refusal)
    assert refusal.differing == ("adapter",)
    assert isinstance(scene.offered("r.2", None, HANDLE), Loaded)


def test_under_an_unknown_adapter_nothing_is_read_and_nothing_published(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    save(scene.engine, HANDLE)
    lora = LoRA(lora_path=str(write(tmp_path / "source")))
    refusal = scene.offered("r.1", lora, HANDLE)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.REVISION_UNKNOWN
    assert "--adapter" in refusal.detail
    evidence = scene.publish("p.1", lora, OTHER_HANDLE)
    assert (evidence.revision, evidence.published) == (None, None)
    assert "--adapter" in str(evidence.publish_failure)


def test_an_adapter_that_becomes_unknown_while_a_request_runs_is_not_published(tmp_path: Path) -> None:
    scene, folder = Scene(tmp_path), copy(tmp_path)
    req = lora_request("p.1", LoRA(lora_path=str(folder)), publish=HANDLE)
    scene.scheduler.matched(req, 0)
    (folder / "adapter_model.safetensors").chmod(0o444)
    assert not scene.scheduler.finished(req, [5, 1, 3, 4])
    assert "changed" in str(scene.evidence("p.1").publish_failure)


def test_the_worker_reads_only_what_fits_the_adapter_of_the_request(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    lora = LoRA(lora_path=str(copy(tmp_path)))
    scene.publish("p.1", lora, HANDLE)
    req = lora_request("r.1", lora, offer=HANDLE)
    scene.scheduler.allocated(req, [0, 7, 2], scene.scheduler.matched(req, 0))
    (job,) = scene.scheduler.jobs().loads
    assert job.blocks
    for adapter in ("none", "b" * 64):
        outcome = scene.engine.loader.load(replace(job, adapter=adapter), None)
        assert isinstance(outcome, Refusal)
        assert outcome.reason is RefusalReason.REVISION_MISMATCH


def test_adapters_divide_the_engines_own_prefix_cache_and_unknown_ones_share_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    known = LoRA(lora_path=str(copy(tmp_path)))
    stranger = LoRA(lora_path=str(write(tmp_path / "source")), lora_name="s", lora_int_id=9)
    salts = []
    for attempt, lora in (("a.1", None), ("a.2", None), ("a.3", known), ("a.4", known), ("a.5", stranger)):
        req = lora_request(attempt, lora)
        scene.scheduler.arrived(req)
        salts.append(req.cache_salt)
    again = lora_request("a.6", stranger)
    scene.scheduler.arrived(again)
    assert salts[0] == salts[1] != salts[2] == salts[3]
    assert len({salts[0], salts[2], salts[4], again.cache_salt}) == 4
