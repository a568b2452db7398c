"""Files in the engine's run folder, by which its connector tells its front: the identity, and one report per attempt."""

import json
import os
from collections import deque
from hashlib import sha256
from pathlib import Path
from typing import Any

from service.domain.evidence import Evidence

MAX_ATTEMPTS_KEPT = 10_000


class Reports:
    """Written by the scheduler side alone, so that no two writers meet."""

    def __init__(self, run_dir: Path, *, kept: int = MAX_ATTEMPTS_KEPT) -> None:
        self._run_dir = run_dir
        self._kept = kept
        attempts = run_dir / "attempts"
        attempts.mkdir(parents=True, exist_ok=True)
        self._order = deque(sorted(attempts.glob("*.json"), key=lambda path: path.stat().st_mtime_ns))
        self._known = set(self._order)

    def write_identity(self, identity: dict[str, Any]) -> None:
        _write(self._run_dir / "identity.json", identity)

    def forget_identity(self) -> None:
        """Of a boot before this one: nobody may take it for ours."""
        (self._run_dir / "identity.json").unlink(missing_ok=True)

    def write_attempt(self, evidence: Evidence, *, publishing: bool) -> None:
        path = attempt_path(self._run_dir, evidence.attempt)
        _write(path, {"evidence": evidence.to_json(), "publishing": publishing})
        if path not in self._known:
            self._known.add(path)
            self._order.append(path)
        while len(self._order) > self._kept:
            oldest = self._order.popleft()
            self._known.discard(oldest)
            oldest.unlink(missing_ok=True)


class KnownIdentity:
    """What the engine measured of itself, read anew once it says otherwise: its weights may be changed in place."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "identity.json"
        self._read_at: tuple[int, int] | None = None
        self._identity: dict[str, Any] | None = None

    def read(self) -> dict[str, Any] | None:
        """None until the engine has measured itself."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        at = status.st_ino, status.st_mtime_ns
        if at != self._read_at:
            self._read_at, self._identity = at, _read(self._path)
        return self._identity


def read_attempt(run_dir: Path, attempt: str) -> tuple[dict[str, Any], bool] | None:
    """The evidence, and whether a publication is still under way; None where the attempt is unknown here."""
    document = _read(attempt_path(run_dir, attempt))
    return (document["evidence"], document["publishing"]) if document else None


def attempt_path(run_dir: Path, attempt: str) -> Path:
    name = sha256(attempt.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    return run_dir / "attempts" / f"{name}.json"


def _write(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    temporary.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return document
