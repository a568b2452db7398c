"""Canonical bytes of plain values: typed and length-delimited, so that no two different values share them."""

import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite

Scalar = str | int | float | bool | None
Value = Scalar | Sequence["Value"] | Mapping[str, "Value"]


def encode(value: Value) -> bytes:
    """One tag byte, an 8-byte big-endian length, then the payload; mappings in key order.

    Raises:
        ValueError: a float that is not finite, which equals nothing, not even itself.
    """
    match value:
        case None:
            return _framed(b"n", b"")
        case bool():
            return _framed(b"b", b"\x01" if value else b"\x00")
        case int():
            return _framed(b"i", str(value).encode("ascii"))
        case float():
            if not isfinite(value):
                msg = f"{value!r} cannot be part of an identity"
                raise ValueError(msg)
            return _framed(b"f", struct.pack(">d", value))
        case str():
            return _framed(b"s", value.encode("utf-8", "surrogatepass"))
        case Mapping():
            return _framed(b"m", b"".join(encode(key) + encode(value[key]) for key in sorted(value)))
        case _:
            return _framed(b"l", b"".join(encode(item) for item in value))


def digest(value: Value) -> str:
    """SHA-256 of the canonical bytes, in hex."""
    return sha256(encode(value)).hexdigest()


def _framed(tag: bytes, payload: bytes) -> bytes:
    return tag + struct.pack(">Q", len(payload)) + payload
