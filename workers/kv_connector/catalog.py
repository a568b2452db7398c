"""What lies in a KV store: its artifacts, its blocks and what nobody needs; read without any engine."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from re import fullmatch
from typing import Any

from service.domain.artifact import ArtifactId, BootId, parse_artifact_id
from service.domain.errors import InvalidInput, InvalidManifest
from service.domain.revision import RevisionDigest, parse_digest
from workers.kv_connector.block_file import unsealed
from workers.kv_connector.store import BlockStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBlock:
    path: Path
    checksum: str
    size: int
    """Payload bytes, as its manifest says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A manifest that is whole. Nothing is decided on it: engines read and judge the manifest itself."""

    path: Path
    artifact: ArtifactId
    tenant: str
    revision: RevisionDigest
    producer: BootId
    attempt: str
    made_by: str
    created_ms: int
    expires_ms: int
    used_ms: int
    """When it was last loaded, or published."""
    tokens: int
    blocks: tuple[ListedBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    path: Path
    size: int
    changed_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    artifacts: tuple[Listed, ...]
    unreadable: tuple[FoundFile, ...]
    """Manifests that say nothing whole."""
    blocks: dict[Path, FoundFile]
    quarantined: tuple[FoundFile, ...]
    unfinished: tuple[FoundFile, ...]

    def orphans(self) -> list[FoundFile]:
        """Blocks that no manifest names: left by a killed writer, by an eviction, or about to be named."""
        needed = {block.path for artifact in self.artifacts for block in artifact.blocks}
        return [found for path, found in self.blocks.items() if path not in needed]

    def needed_by(self) -> Counter[Path]:
        """How many artifacts name each block."""
        return Counter(path for a in self.artifacts for path in {block.path for block in a.blocks})


class Catalog:
    """Keeps what it read of each manifest: they never change, so a later look costs one stat each."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._known: dict[Path, Listed] = {}

    def look(self) -> Contents:
        """Blocks first: a manifest that is published meanwhile is then surely seen. Raises: OSError."""
        root = self._store.root
        blocks = {found.path: found for found in _files(root / "blocks")}
        artifacts, unreadable = [], []
        known, self._known = self._known, {}
        for found in _files(root / "manifests"):
            listed = self._listed(found, known.get(found.path))
            if listed is None:
                unreadable.append(found)
            else:
                artifacts.append(listed)
                self._known[found.path] = listed
        return Contents(
            artifacts=tuple(sorted(artifacts, key=lambda a: (a.created_ms, a.artifact))),
            unreadable=tuple(unreadable),
            blocks=blocks,
            quarantined=tuple(_files(root / "quarantine")),
            unfinished=tuple(_files(root / "tmp")),
        )

    def _listed(self, found: FoundFile, known: Listed | None) -> Listed | None:
        if known is not None and known.used_ms == found.changed_ms:
            return known
        try:
            return self._from_document(found, json.loads(unsealed(found.path.read_bytes())))
        except (OSError, InvalidManifest, InvalidInput, ValueError, TypeError, KeyError, RecursionError):
            return None

    def _from_document(self, found: FoundFile, document: dict[str, Any]) -> Listed:
        """Also of a format from the future, as long as it still names its blocks: they must not be taken for orphans."""
        artifact = parse_artifact_id(document["artifact"])
        if not isinstance(artifact, str) or found.path.name != f"{artifact}.json":
            msg = "it lies under another name"
            raise ValueError(msg)
        tenant, revision = str(document["tenant"]), parse_digest(document["revision"])
        return Listed(
            path=found.path,
            artifact=artifact,
            tenant=tenant,
            revision=revision,
            producer=BootId(str(document["producer"])),
            attempt=str(document["attempt"]),
            made_by=str(document["made_by"]),
            created_ms=int(document["created_ms"]),
            expires_ms=int(document["expires_ms"]),
            used_ms=found.changed_ms,
            tokens=int(document["token_count"]),
            blocks=tuple(
                ListedBlock(
                    path=self._store.block_path(tenant, revision, _key(block["key"])),
                    checksum=str(block["checksum"]),
                    size=int(block["size"]),
                )
                for block in document["blocks"]
            ),
        )


def _key(text: object) -> str:
    """No name that could lead out of the store."""
    if isinstance(text, str) and fullmatch(r"[0-9a-f]{64}", text):
        return text
    msg = "a key of it is no SHA-256"
    raise ValueError(msg)


def distinct_bytes(artifacts: Iterable[Listed]) -> int:
    """Of payload; what they share counts once."""
    sizes = {block.path: block.size for artifact in artifacts for block in artifact.blocks}
    return sum(sizes.values())


def _files(folder: Path) -> Iterator[FoundFile]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # it went between the listing and the look
        yield FoundFile(
            path=Path(entry.path), size=status.st_size, changed_ms=status.st_mtime_ns // 1_000_000
        )
