"""Content digests of checkpoint files; a shard is read once per host, then recognised by its stat key."""

import json
import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from service.domain import canonical
from service.domain.errors import InvalidInput

CHUNK_BYTES = 1 << 22
CACHE_FILE = "hashes.json"


def weights_digest(model_path: Path, cache: Path) -> str:
    """SHA-256 over (name, SHA-256 of the bytes) of every safetensors shard, in name order.

    Args:
        model_path: a local checkpoint folder.
        cache: a folder that keeps known shard hashes; made if missing.

    Raises:
        InvalidInput: naming the path, what is wrong with it, and the way out.
    """
    return files_digest(_shards(model_path), cache)


def files_digest(paths: Iterable[Path], cache: Path | None) -> str:
    """Over the files' names and bytes. `cache` None reads every byte, as suits small files."""
    known = _load(cache)
    pairs, fresh = [], {}
    for path in sorted(paths):
        key = _stat_key(path)
        digest = known.get(key) or _sha256_of(path)
        if key != _stat_key(path):
            raise InvalidInput(f"'{path}' changed while it was being hashed; start again.", "model")
        fresh[key] = digest
        pairs.append([path.name, digest])
    if cache is not None and not fresh.keys() <= known.keys():
        _store(cache, known | fresh)
    return canonical.digest(pairs)


def _shards(model_path: Path) -> list[Path]:
    if not model_path.is_dir():
        raise InvalidInput(
            f"'{model_path}' is not a folder on this machine. Download the checkpoint and give its folder: "
            "names, branches and tags move, and identify nothing.",
            "model",
        )
    shards = [path for path in model_path.iterdir() if path.suffix == ".safetensors"]
    if not shards:
        raise InvalidInput(f"'{model_path}' has no .safetensors file. {_way_out(model_path)}", "model")
    return shards


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
