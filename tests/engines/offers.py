"""Artifacts that real engines publish, offer each other and refuse; and ways to damage them."""

import json
from pathlib import Path

from service.domain.artifact import ArtifactId
from service.domain.evidence import Refusal
from service.domain.revision import RevisionDigest
from tests.engines.real import TENANT, RealEngine, Reply, new_handle
from workers.kv_connector.block_file import sealed, unsealed
from workers.kv_connector.local_store import LocalStore


def published(engine: RealEngine, ids: list[int]) -> str:
    handle = new_handle()
    reply = engine.generate(ids, publish=handle, max_tokens=1)
    assert reply.known.published is not None
    return handle


def refusal_of(reply: Reply) -> Refusal:
    assert reply.known.loaded is None
    assert reply.known.refusal is not None
    return reply.known.refusal


def assert_equals_cold(engine: RealEngine, reply: Reply, ids: list[int]) -> None:
    cold = engine.cold(ids)
    assert (reply.tokens, reply.logprobs) == (cold.tokens, cold.logprobs)


def block_files(engine: RealEngine, handle: str) -> list[Path]:
    store = LocalStore(engine.store)
    manifest = json.loads(store.read_manifest(TENANT, ArtifactId(handle)))
    return [
        store.block_path(TENANT, RevisionDigest(manifest["revision"]), block["key"])
        for block in manifest["blocks"]
    ]


def flip_one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def spoil_header(path: Path) -> None:
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def manifest_path(engine: RealEngine, handle: str, tenant: str = TENANT) -> Path:
    return LocalStore(engine.store).manifest_path(tenant, ArtifactId(handle))


def rewrite_manifest(engine: RealEngine, handle: str, **changes: object) -> None:
    """With a seal that fits; a change to None takes the field out."""
    path = manifest_path(engine, handle)
    document = json.loads(unsealed(path.read_bytes())) | changes
    kept = {name: value for name, value in document.items() if value is not None}
    path.write_bytes(sealed(json.dumps(kept).encode()))
