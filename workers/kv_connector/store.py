"""The KV store in a local directory: content-addressed block files, and manifests that appear last and whole.

Layout and bytes: docs/kv-format.md. Nothing here trusts a file: whoever reads checks it against a manifest.
"""

import json
import logging
import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from service.domain.artifact import ArtifactId, Manifest
from service.domain.errors import InvalidInput, InvalidManifest
from service.domain.revision import Descriptor, RevisionDigest, parse_digest
from workers.kv_connector.block_file import BlockHeader, BlockUnreadable, sealed, unsealed

logger = logging.getLogger("vllm.everturn")

STALE_AFTER_S = 3600
MAX_MANIFEST_BYTES = 1 << 24


class BlockStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._temporary = root / "tmp"

    def block_path(self, tenant: str, revision: RevisionDigest, key: str) -> Path:
        return self.root / "blocks" / _folder(tenant) / revision / key

    def manifest_path(self, tenant: str, artifact: ArtifactId) -> Path:
        return self.root / "manifests" / _folder(tenant) / f"{artifact}.json"

    def put_block(self, header: BlockHeader, payload: memoryview) -> bool:
        """False where a file of this name already stands; it is left as it is."""
        path = self.block_path(header.tenant, header.revision, header.key)
        return self._publish(path, [header.to_bytes(), payload])

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
            header = BlockHeader.read_from(file)
            _read_whole(file, payload)
            if header.size != len(payload) or file.read(1):
                raise BlockUnreadable("it is not as long as this engine's blocks")
        return header, sha256(payload).hexdigest()

    def keep_block(self, tenant: str, revision: RevisionDigest, key: str) -> bool:
        """Whether it stands; if so, the collector takes it for new, and leaves its writer time for the manifest."""
        try:
            os.utime(self.block_path(tenant, revision, key))
        except FileNotFoundError:
            return False
        return True

    def put_manifest(self, manifest: Manifest) -> bool:
        """The last step of a publication; False where the handle is taken."""
        _sync_folder(self.block_path(manifest.tenant, manifest.revision, manifest.blocks[0].key).parent)
        path = self.manifest_path(manifest.tenant, manifest.artifact)
        return self._publish(path, [sealed(manifest.to_bytes())])

    def read_manifest(self, tenant: str, artifact: ArtifactId) -> bytes:
        """Raises:
        FileNotFoundError: there is none.
        InvalidManifest: it is not, byte for byte, what was published.
        OSError: the store does not answer.
        """
        with self.manifest_path(tenant, artifact).open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
        if len(data) > MAX_MANIFEST_BYTES:
            raise InvalidManifest(f"The manifest is longer than {MAX_MANIFEST_BYTES} bytes.", "manifest")
        return unsealed(data)

    def use_manifest(self, tenant: str, artifact: ArtifactId) -> None:
        """Marks it as used now: what was used longest ago is evicted first."""
        with suppress(OSError):  # gone meanwhile, or a store that cannot be written
            os.utime(self.manifest_path(tenant, artifact))

    def put_descriptor(self, descriptor: Descriptor) -> None:
        """So that anyone can name the fields in which a foreign digest differs."""
        data = json.dumps(descriptor.to_json(), sort_keys=True).encode()
        try:
            self._publish(self.root / "revisions" / f"{descriptor.digest}.json", [data])
        except OSError as error:
            logger.warning("Everturn cannot write to its KV store %s: %s", self.root, error)

    def read_descriptor(self, digest: str) -> Descriptor | None:
        """None where it is unknown here or unreadable: it only explains, it never decides."""
        try:
            name = parse_digest(digest)
            document = json.loads((self.root / "revisions" / f"{name}.json").read_bytes())
            return Descriptor.from_json(document)
        except (OSError, ValueError, InvalidInput):
            return None

    def quarantine(self, tenant: str, revision: RevisionDigest, key: str) -> None:
        """Out of the way of its repair, and kept for whoever asks what happened."""
        try:
            self.put_aside(self.block_path(tenant, revision, key))
        except OSError as error:
            logger.warning("Everturn cannot put block %s aside: %s", key, error)

    def put_aside(self, path: Path) -> None:
        """A block or manifest. Raises: OSError, unless another was first."""
        kept = self.root / "quarantine"
        kept.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            path.rename(kept / f"{path.name}.{time.time_ns()}")

    def sweep(self) -> None:
        """Removes what writers that were killed left half-written."""
        oldest = time.time() - STALE_AFTER_S
        try:
            for path in self._temporary.iterdir():
                if path.stat().st_mtime < oldest:
                    path.unlink(missing_ok=True)
        except FileNotFoundError:
            return  # nothing was written yet, or another engine sweeps too
        except OSError as error:
            logger.warning("Everturn could not sweep its KV store: %s", error)

    def _publish(self, path: Path, parts: list[bytes | memoryview]) -> bool:
        for folder in (path.parent, self._temporary):
            folder.mkdir(parents=True, exist_ok=True)
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
