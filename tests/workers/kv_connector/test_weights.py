"""The digest of a checkpoint: its bytes and nothing else, read once."""

import json
import os
import time
from pathlib import Path

import pytest

from service.domain.errors import InvalidInput
from workers.kv_connector import weights
from workers.kv_connector.weights import weights_digest


def checkpoint(folder: Path, shards: dict[str, bytes]) -> Path:
    folder.mkdir()
    for name, data in shards.items():
        (folder / name).write_bytes(data)
    return folder


def test_equal_bytes_have_one_digest_wherever_they_are(tmp_path: Path) -> None:
    shards = {"model-1.safetensors": b"one", "model-2.safetensors": b"two"}
    one, other = checkpoint(tmp_path / "a", shards), checkpoint(tmp_path / "b", shards)
    (other / "README.md").write_text("not a weight")
    assert weights_digest(one, tmp_path / "cache") == weights_digest(other, tmp_path / "cache")


@pytest.mark.parametrize(
    "shards",
    [
        {"model-1.safetensors": b"onetwo", "model-2.safetensors": b""},
        {"model-1.safetensors": b"two", "model-2.safetensors": b"one"},
        {"model-1.safetensors": b"one", "model-3.safetensors": b"two"},
        {"model-1.safetensors": b"one"},
    ],
    ids=["boundary", "swapped", "renamed", "missing"],
)
def test_shards_cut_swapped_renamed_or_missing_have_another(tmp_path: Path, shards: dict[str, bytes]) -> None:
    one = checkpoint(tmp_path / "a", {"model-1.safetensors": b"one", "model-2.safetensors": b"two"})
    other = checkpoint(tmp_path / "b", shards)
    assert weights_digest(one, tmp_path / "cache") != weights_digest(other, tmp_path / "cache")


def test_a_known_shard_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = checkpoint(tmp_path / "a", {"model.safetensors": b"one"})
    first = weights_digest(model, tmp_path / "cache")
    monkeypatch.setattr(weights, "_sha256_of", lambda path: pytest.fail(f"read {path} again"))
    assert weights_digest(model, tmp_path / "cache") == first


def test_a_shard_is_read_again_where_the_file_system_makes_up_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = checkpoint(tmp_path / "a", {"model.safetensors": b"one"})
    first = weights_digest(model, tmp_path / "cache")
    table = tmp_path / "mountinfo"
    table.write_text(f"30 1 0:40 / {tmp_path} rw - fuse.gcsfuse bucket rw\n")
    monkeypatch.setattr(weights, "MOUNT_TABLE", table)
    (tmp_path / "cache" / weights.CACHE_FILE).write_text(
        json.dumps({weights._stat_key(model / "model.safetensors"): "0" * 64})
    )
    assert weights_digest(model, tmp_path / "cache") == first
    (model / "model.safetensors").write_bytes(b"two")
    second = weights_digest(model, tmp_path / "cache")
    assert second != first
    kept = json.loads((tmp_path / "cache" / weights.CACHE_FILE).read_bytes())
    assert weights._stat_key(model / "model.safetensors") not in kept, (
        "nor remembered for where it is trusted"
    )


def test_a_shard_rewritten_in_place_with_its_old_times_is_read_again(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "a", {"model.safetensors": b"one"})
    shard = model / "model.safetensors"
    first, times = weights_digest(model, tmp_path / "cache"), shard.stat()
    shard.write_bytes(b"two")
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights_digest(model, tmp_path / "cache") != first


def test_a_paranoid_pass_finds_what_no_time_tells_and_mends_the_cache(tmp_path: Path) -> None:
    model = checkpoint(tmp_path / "a", {"model.safetensors": b"one"})
    truth = weights_digest(model, tmp_path / "cache")
    lies = dict.fromkeys(json.loads((tmp_path / "cache" / weights.CACHE_FILE).read_bytes()), "0" * 64)
    (tmp_path / "cache" / weights.CACHE_FILE).write_text(json.dumps(lies))
    assert weights_digest(model, tmp_path / "cache") != truth
    assert weights_digest(model, tmp_path / "cache", paranoid=True) == truth
    assert weights_digest(model, tmp_path / "cache") == truth


def test_a_shard_is_not_hashed_in_the_clock_tick_of_its_last_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second write in that tick would leave size, mtime and ctime as they were."""
    ages = []
    sha256_of = weights._sha256_of

    def aged(path: Path) -> str:
        ages.append(time.time() - path.stat().st_ctime)
        return sha256_of(path)

    monkeypatch.setattr(weights, "_sha256_of", aged)
    weights_digest(checkpoint(tmp_path / "a", {"model.safetensors": b"one"}), tmp_path / "cache")
    assert min(ages) >= weights.CLOCK_TICK_S / 2


@pytest.mark.parametrize("content", [b"", b"not JSON", b"[]"])
def test_a_spoiled_cache_only_costs_time(tmp_path: Path, content: bytes) -> None:
    model = checkpoint(tmp_path / "a", {"model.safetensors": b"one"})
    first = weights_digest(model, tmp_path / "cache")
    (tmp_path / "cache" / weights.CACHE_FILE).write_bytes(content)
    assert weights_digest(model, tmp_path / "cache") == first


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, ["no .safetensors file", "holds nothing"]),
        ({"model.gguf": b""}, ["model.gguf", "GgufConfig(dequantize=True)"]),
        ({"pytorch_model.bin": b""}, ["pytorch_model.bin", "save_pretrained"]),
        ({"config.json": b"{}"}, ["config.json", "folder that holds the weights"]),
    ],
)
def test_a_folder_without_shards_is_refused_with_what_is_there_and_the_way_out(
    tmp_path: Path, files: dict[str, bytes], words: list[str]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        weights_digest(checkpoint(tmp_path / "a", files), tmp_path / "cache")
    assert refused.value.param == "model"
    assert all(word in str(refused.value) for word in words)


def test_a_name_from_a_hub_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not a folder on this machine"):
        weights_digest(Path("HuggingFaceTB/SmolLM2-135M-Instruct"), tmp_path)
