"""What lies in a KV store: its artifacts, its blocks and what nobody needs; read without any engine."""

import json
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from service.domain.artifact import ArtifactId, BootId, parse_artifact_id
from service.domain.errors import InvalidInput, InvalidManifest
from service.domain.revision import RevisionDigest, parse_digest
from workers.kv_connector.block_file import unsealed
from workers.kv_connector.store import BlockStore, ObjectName, StoredObject, block_name, own_name

READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBlock:
    name: ObjectName
    checksum: str
    size: int
    """Payload bytes, as its manifest says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A manifest that is whole. Nothing is decided on it: engines read and judge the manifest itself."""

    name: ObjectName
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
class Contents:
    artifacts: tuple[Listed, ...]
    unreadable: tuple[StoredObject, ...]
    """Manifests that say nothing whole."""
    unanswered: tuple[StoredObject, ...]
    """Manifests that the store did not give just now: any block may be theirs."""
    blocks: dict[ObjectName, StoredObject]
    quarantined: tuple[StoredObject, ...]
    leftovers: tuple[StoredObject, ...]
    """Of writers that were killed, and of what is gone."""

    def orphans(self) -> list[StoredObject]:
        """Blocks that no manifest names: left by a killed writer, by an eviction, or about to be named."""
        if self.unanswered:
            return []
        needed = {block.name for artifact in self.artifacts for block in artifact.blocks}
        return [found for name, found in self.blocks.items() if name not in needed]

    def needed_by(self) -> Counter[ObjectName]:
        """How many artifacts name each block."""
        return Counter(name for a in self.artifacts for name in {block.name for block in a.blocks})


class Catalog:
    """Keeps what it read of each manifest: they never change, so a later look costs the listing alone."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._known: dict[ObjectName, Listed] = {}

    def look(self) -> Contents:
        """Blocks first: a manifest that is published meanwhile is then surely seen. Raises: OSError."""
        blocks = {found.name: found for found in self._store.list("blocks")}
        manifests = list(self._store.list("manifests"))
        with ThreadPoolExecutor(READERS, thread_name_prefix="everturn-catalog") as readers:
            read = list(zip(manifests, readers.map(self._listed, manifests), strict=True))
        artifacts = [listed for _, listed in read if isinstance(listed, Listed)]
        self._known = {listed.name: listed for listed in artifacts}
        return Contents(
            artifacts=tuple(sorted(artifacts, key=lambda a: (a.created_ms, a.artifact))),
            unreadable=tuple(found for found, listed in read if listed is None),
            unanswered=tuple(found for found, listed in read if _is_unanswered(listed)),
            blocks=blocks,
            quarantined=tuple(self._store.list("quarantine")),
            leftovers=tuple(self._store.leftovers({*blocks, *(found.name for found in manifests)})),
        )

    def _listed(self, found: StoredObject) -> Listed | OSError | None:
        known = self._known.get(found.name)
        if known is not None and known.used_ms == found.changed_ms:
            return known
        try:
            return _from_document(found, json.loads(unsealed(self._store.read(found.name))))
        except OSError as error:
            return error
        except (InvalidManifest, InvalidInput, ValueError, TypeError, KeyError, RecursionError):
            return None


def _is_unanswered(read: Listed | OSError | None) -> bool:
    """One that is gone since the listing needs no block."""
    return isinstance(read, OSError) and not isinstance(read, FileNotFoundError)


def _from_document(found: StoredObject, document: dict[str, Any]) -> Listed:
    """Also of a format from the future, as long as it still names its blocks: they must not be taken for orphans."""
    artifact = parse_artifact_id(document["artifact"])
    if not isinstance(artifact, str) or own_name(found.name) != f"{artifact}.json":
        msg = "it lies under another name"
        raise ValueError(msg)
    tenant, revision = str(document["tenant"]), parse_digest(document["revision"])
    return Listed(
        name=found.name,
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
                name=block_name(tenant, revision, block["key"]),
                checksum=str(block["checksum"]),
                size=int(block["size"]),
            )
            for block in document["blocks"]
        ),
    )


def distinct_bytes(artifacts: Iterable[Listed]) -> int:
    """Of payload; what they share counts once."""
    sizes = {block.name: block.size for artifact in artifacts for block in artifact.blocks}
    return sum(sizes.values())
