"""The heads of all streams at one moment, signed: kept where the database's own administrators cannot write.

A chain alone cannot show that its end was cut off, or that all of it was made anew; a checkpoint shows both. The file is
JSON lines: a header, one `[tenant, stream, version, chain]` for each stream, and a footer that signs every byte before it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import IO, Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from sqlalchemy import Connection, text

from service.domain.errors import InvalidInput
from service.store.integrity import Break

FORMAT = "everturn-checkpoint-1"
SIGNED = b"everturn-checkpoint-1\0"
BATCH = 1000

HEADS = text("""
    SELECT DISTINCT ON (tenant_id, stream) tenant_id, stream, stream_version, chain FROM events
    ORDER BY tenant_id, stream, stream_version DESC
""")

CHAINS = text("""
    SELECT head.tenant_id, head.stream, head.version, e.position, e.chain
    FROM unnest(CAST(:tenants AS text[]), CAST(:streams AS text[]), CAST(:versions AS bigint[]))
        AS head (tenant_id, stream, version)
    LEFT JOIN events AS e
        ON (e.tenant_id, e.stream, e.stream_version) = (head.tenant_id, head.stream, head.version)
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    tenant: str
    stream: str
    version: int
    chain: bytes


def heads(conn: Connection) -> Iterator[Head]:
    conn.execute(text("SET LOCAL statement_timeout = 0"))
    for tenant, stream, version, chain in conn.execute(HEADS, execution_options={"yield_per": BATCH}):
        yield Head(tenant=tenant, stream=stream, version=version, chain=chain)


def write(path: Path, made: Iterable[Head], key: Ed25519PrivateKey, now: datetime) -> int:
    """Returns the number of heads. The file appears whole or not at all.

    Raises:
        InvalidInput: there is such a file already: a checkpoint is never overwritten.
    """
    if path.exists():
        raise InvalidInput(f"{path} exists, and a checkpoint is never overwritten: name another file.", "out")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    digest, count = sha256(SIGNED), 0
    try:
        with temporary.open("xb") as file:
            _line(file, {"format": FORMAT, "made_at": now.isoformat()}, digest)
            for count, head in enumerate(made, 1):  # noqa: B007 the count is what is wanted after it
                _line(file, [head.tenant, head.stream, head.version, head.chain.hex()], digest)
            public = key.public_key().public_bytes_raw().hex()
            footer = {"heads": count, "public_key": public, "signature": key.sign(digest.digest()).hex()}
            _line(file, footer, sha256())
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.", "out") from error
    finally:
        temporary.unlink(missing_ok=True)
    return count


def check_signature(path: Path, key: Ed25519PublicKey) -> int:
    """Returns the number of heads; reads the file once, line by line.

    Raises:
        InvalidInput: not a checkpoint, not whole, or not signed with this key.
    """
    digest, count, last = sha256(SIGNED), -2, b""
    try:
        with path.open("rb") as file:
            for line in file:
                digest.update(last)
                last = line
                count += 1
        footer = json.loads(last)
        key.verify(bytes.fromhex(footer["signature"]), digest.digest())
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.", "checkpoint") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path} is no whole checkpoint: its last line is no footer.", "checkpoint"
        ) from error
    except InvalidSignature as error:
        raise InvalidInput(
            f"{path} is not signed with this key, or was changed since: take another copy, or name the right key.",
            "checkpoint",
        ) from error
    return count


def compare(conn: Connection, path: Path) -> Iterator[Break]:
    """What the log has lost or changed since a checkpoint whose signature was checked."""
    conn.execute(text("SET LOCAL statement_timeout = 0"))
    rest = _heads_of(path)
    while some := list(islice(rest, BATCH)):
        yield from _compare(conn, some)


def _compare(conn: Connection, some: Sequence[Head]) -> Iterator[Break]:
    given = {
        "tenants": [head.tenant for head in some],
        "streams": [head.stream for head in some],
        "versions": [head.version for head in some],
    }
    found = {(row.tenant_id, row.stream): row for row in conn.execute(CHAINS, given)}
    for head in some:
        row = found[head.tenant, head.stream]
        if row.chain == head.chain:
            continue
        gone = "it was there at the checkpoint: the end of its stream was cut off"
        anew = "its chain is not that of the checkpoint: its stream was made anew"
        yield Break(
            tenant=head.tenant,
            stream=head.stream,
            version=head.version,
            position=row.position,
            reason=gone if row.chain is None else anew,
        )


def _heads_of(path: Path) -> Iterator[Head]:
    with path.open("rb") as file:
        for line in file:
            match json.loads(line):
                case [tenant, stream, version, chain]:
                    yield Head(tenant=tenant, stream=stream, version=version, chain=bytes.fromhex(chain))
                case _:
                    continue


def _line(file: IO[bytes], value: Any, digest: Any) -> None:
    data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    digest.update(data)
    file.write(data)
