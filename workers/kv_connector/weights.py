"""Content digests of checkpoint files; a shard is read once per host, then recognised by its stat key, where that can be trusted."""

import json
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from service.domain import canonical
from service.domain.errors import InvalidInput
from workers.kv_connector.mounts import MOUNT_TABLE, Mounts

CHUNK_BYTES = 1 << 22
CACHE_FILE = "hashes.json"
CLOCK_TICK_S = 0.02
"""Longer than the kernel's: two writes within one leave the same time behind."""


def weights_digest(model_path: Path, cache: Path, *, paranoid: bool = False) -> str:
    """SHA-256 over (name, SHA-256 of the bytes) of every safetensors shard, in name order.

    Args:
        model_path: a local checkpoint folder.
        cache: a folder that keeps known shard hashes; made if missing.
        paranoid: read every byte all the same, as where a disk may change under a file without its times.

    Raises:
        InvalidInput: naming the path, what is wrong with it, and the way out.
    """
    return files_digest(shards(model_path), cache, paranoid=paranoid)


def files_digest(paths: Iterable[Path], cache: Path | None, *, paranoid: bool = False) -> str:
    """Over the files' names and bytes. `cache` None reads every byte, as suits small files."""
    files = sorted(paths)
    known = {} if paranoid else _load(cache)
    if known and not _keep_times(files):
        known = {}
    keys = [_stat_key(path) for path in files]
    unread = [path for path, key in zip(files, keys, strict=True) if key not in known]
    read = dict(zip(unread, _hashed(unread), strict=True))
    hashes = [read[path] if path in read else known[key] for path, key in zip(files, keys, strict=True)]
    for path, key in zip(files, keys, strict=True):
        if key != _stat_key(path):
            raise InvalidInput(f"'{path}' changed while it was being hashed; start again.", "model")
    if cache is not None and read and _keep_times(files):
        _store(cache, _load(cache) | dict(zip(keys, hashes, strict=True)))
    return canonical.digest([[path.name, digest] for path, digest in zip(files, hashes, strict=True)])


def _keep_times(files: Iterable[Path]) -> bool:
    mounts = Mounts.read(MOUNT_TABLE)
    return all(mounts.keep_times(path) for path in files)


def _hashed(paths: Sequence[Path]) -> list[str]:
    """Each on a thread of its own, as many as there are cores: hashing leaves Python's lock to others."""
    if not paths:
        return []
    youngest_s = time.time() - max(path.stat().st_ctime for path in paths)
    if 0 <= youngest_s < CLOCK_TICK_S:
        # Else a write that follows in the same tick would not show in the stat key.
        time.sleep(CLOCK_TICK_S)
    with ThreadPoolExecutor(min(len(paths), os.cpu_count() or 1), thread_name_prefix="everturn-hash") as pool:
        return list(pool.map(_sha256_of, paths))


def shards(model_path: Path) -> list[Path]:
    """Raises: InvalidInput, as `weights_digest`."""
    if not model_path.is_dir():
        raise InvalidInput(
            f"'{model_path}' is not a folder on this machine. Download the checkpoint and give its folder: "
            "names, branches and tags move, and identify nothing.",
            "model",
        )
    found = [path for path in model_path.iterdir() if path.suffix == ".safetensors"]
    if not found:
        raise InvalidInput(f"'{model_path}' has no .safetensors file. {_way_out(model_path)}", "model")
    return found


def _way_out(model_path: Path) -> str:
    names = sorted(path.name for path in model_path.iterdir())
    for suffixes, advice in (
        ((".gguf",), "convert it first, with transformers' GgufConfig(dequantize=True) and save_pretrained"),
        ((".bin", ".pt", ".pth"), "convert it first, with transformers' save_pretrained"),
    ):
        found = [name for name in names if name.endswith(suffixes)]
        if found:
            return f"It has {', '.join(found[:3])}: {advice}."
    shown = ", ".join(names[:5]) or "nothing"
    return f"It holds {shown}; give the folder that holds the weights."


def _stat_key(path: Path) -> str:
    s = path.stat()
    return f"{s.st_dev}:{s.st_ino}:{s.st_size}:{s.st_mtime_ns}:{s.st_ctime_ns}"


def _sha256_of(path: Path) -> str:
    digest = sha256()
    with path.open("rb", buffering=0) as file:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def _load(cache: Path | None) -> dict[str, str]:
    if cache is None:
        return {}
    try:
        known = json.loads((cache / CACHE_FILE).read_bytes())
    except (OSError, ValueError):
        return {}  # a lost cache costs one reading of the shards, never a wrong digest
    return known if isinstance(known, dict) else {}


def _store(cache: Path, known: dict[str, str]) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    temporary = cache / f"{CACHE_FILE}.{os.getpid()}"
    temporary.write_text(json.dumps(known, indent=0, sort_keys=True), encoding="utf-8")
    temporary.replace(cache / CACHE_FILE)
