"""The KV store in a local directory: content-addressed block files, and manifests that appear last and whole.

Layout and bytes: docs/kv-format.md. Nothing here trusts a file: whoever reads checks it against a manifest.
"""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from service.domain.artifact import ArtifactId, BootId, MadeBy, Manifest, Tensor
from service.domain.errors import InvalidInput
from service.domain.revision import Descriptor, RevisionDigest, parse_digest

BLOCK_FORMAT = 1
MAX_HEADER_BYTES = 1 << 20
STALE_AFTER_S = 3600


class BlockUnreadable(Exception):
    """Its bytes are not a whole block file of this format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """Stands beside the payload, so that a block says by itself whose it is."""

    key: str
    tenant: str
    revision: RevisionDigest
    producer: BootId
    made_by: MadeBy
    tensors: tuple[Tensor, ...]
    checksum: str
    size: int

    def is_same_block(self, other: "BlockHeader") -> bool:
        """Of the same tokens, revision, tenant and layout; made by whichever engine, in whichever way."""
        return (self.key, self.tenant, self.revision, self.tensors, self.size) == (
            other.key,
            other.tenant,
            other.revision,
            other.tensors,
            other.size,
        )

    def to_bytes(self) -> bytes:
        document = asdict(self) | {"format": BLOCK_FORMAT}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "BlockHeader":
        try:
            return cls._from_document(json.loads(data))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BlockUnreadable(f"its header cannot be read: {error}") from error

    @classmethod
    def _from_document(cls, document: dict[str, Any]) -> "BlockHeader":
        if document.pop("format") != BLOCK_FORMAT:
            msg = "another block format"
            raise ValueError(msg)
        tensors = tuple(Tensor(**t | {"shape": tuple(t["shape"])}) for t in document["tensors"])
        return cls(**document | {"tensors": tensors, "made_by": MadeBy(document["made_by"])})


class BlockStore:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._temporary = root / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)

    def block_path(self, tenant: str, revision: RevisionDigest, key: str) -> Path:
        return self._root / "blocks" / _folder(tenant) / revision / key[:2] / key

    def manifest_path(self, tenant: str, artifact: ArtifactId) -> Path:
        return self._root / "manifests" / _folder(tenant) / f"{artifact}.json"

    def put_block(self, header: BlockHeader, payload: memoryview) -> bool:
        """False where a file of this name already stands; it is left as it is."""
        data = header.to_bytes()
        path = self.block_path(header.tenant, header.revision, header.key)
        return self._publish(path, [len(data).to_bytes(8, "little"), data, payload])

    def read_block(
        self, tenant: str, revision: RevisionDigest, key: str, payload: memoryview
    ) -> tuple[BlockHeader, str]:
        """Fills `payload` and gives the header and the payload's own SHA-256.

        Raises:
            BlockUnreadable: damaged, or not of the size of `payload`.
            FileNotFoundError: there is none.
            OSError: the store does not answer.
        """
        with self.block_path(tenant, revision, key).open("rb", buffering=0) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= MAX_HEADER_BYTES:
                raise BlockUnreadable(f"its header claims {length} bytes")
            header = BlockHeader.from_bytes(file.read(length))
            _read_whole(file, payload)
            if header.size != len(payload) or file.read(1):
                raise BlockUnreadable("it is not as long as this engine's blocks")
        return header, sha256(payload).hexdigest()

    def has_block(self, tenant: str, revision: RevisionDigest, key: str) -> bool:
        return self.block_path(tenant, revision, key).exists()

    def put_manifest(self, manifest: Manifest) -> bool:
        """The last step of a publication; False where the handle is taken."""
        folders = {self.block_path(manifest.tenant, manifest.revision, b.key).parent for b in manifest.blocks}
        for folder in sorted(folders):
            _sync_folder(folder)
        return self._publish(self.manifest_path(manifest.tenant, manifest.artifact), [manifest.to_bytes()])

    def read_manifest(self, tenant: str, artifact: ArtifactId) -> bytes:
        return self.manifest_path(tenant, artifact).read_bytes()

    def put_descriptor(self, descriptor: Descriptor) -> None:
        """So that anyone can name the fields in which a foreign digest differs."""
        data = json.dumps(descriptor.to_json(), sort_keys=True).encode()
        self._publish(self._root / "revisions" / f"{descriptor.digest}.json", [data])

    def read_descriptor(self, digest: str) -> Descriptor | None:
        """None where it is unknown here or unreadable: it only explains, it never decides."""
        try:
            name = parse_digest(digest)
            document = json.loads((self._root / "revisions" / f"{name}.json").read_bytes())
            return Descriptor.from_json(document)
        except (OSError, ValueError, InvalidInput):
            return None

    def quarantine(self, tenant: str, revision: RevisionDigest, key: str) -> None:
        """Out of the way of its repair, and kept for whoever asks what happened."""
        kept = self._root / "quarantine"
        kept.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # another reader was first
            self.block_path(tenant, revision, key).rename(kept / f"{key}.{time.time_ns()}")

    def sweep(self) -> None:
        """Removes what writers that were killed left half-written."""
        oldest = time.time() - STALE_AFTER_S
        for path in self._temporary.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    def _publish(self, path: Path, parts: list[bytes | memoryview]) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._temporary / f"{os.getpid()}-{time.monotonic_ns()}-{path.name[:16]}"
        try:
            with temporary.open("xb", buffering=0) as file:
                for part in parts:
                    _write_whole(file, part)
                os.fsync(file.fileno())
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        if path.suffix == ".json":
            _sync_folder(path.parent)
        return True


def _folder(tenant: str) -> str:
    return sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _write_whole(file: Any, part: bytes | memoryview) -> None:
    view = memoryview(part)
    while view:
        view = view[file.write(view) :]


def _read_whole(file: Any, payload: memoryview) -> None:
    view = payload
    while view:
        count = file.readinto(view)
        if not count:
            raise BlockUnreadable(f"it ends {len(view)} bytes early")
        view = view[count:]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
