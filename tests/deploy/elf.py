"""What a program or library for Linux asks the loader for, read from the file itself."""

import struct
from pathlib import Path

MAGIC = b"\x7fELF\x02\x01"
"""Of 64 bits, little-endian."""
PROGRAM_HEADERS_AT, HEADER_SIZES_AT = 0x20, 0x36
LOAD, DYNAMIC = 1, 2
NEEDED, STRINGS = 1, 5


def needed(path: Path) -> set[str]:
    """Names of libraries; none where the file is no such program, or is linked to none."""
    with path.open("rb") as file:

        def at(offset: int, size: int) -> bytes:
            file.seek(offset)
            return file.read(size)

        if at(0, len(MAGIC)) != MAGIC:
            return set()
        (table,) = struct.unpack("<Q", at(PROGRAM_HEADERS_AT, 8))
        size, count = struct.unpack("<HH", at(HEADER_SIZES_AT, 4))
        segments = [struct.unpack("<IIQQQQ", at(table + size * n, 40)) for n in range(count)]
        loaded = [
            (address, offset, length) for kind, _, offset, address, _, length in segments if kind == LOAD
        ]
        names = set()
        for kind, _, offset, _, _, length in segments:
            if kind != DYNAMIC:
                continue
            entries = list(struct.iter_unpack("<qQ", at(offset, length - length % 16)))
            strings = next(
                value - address + start
                for tag, value in entries
                if tag == STRINGS
                for address, start, extent in loaded
                if address <= value < address + extent
            )
            names |= {
                at(strings + value, 256).split(b"\0")[0].decode() for tag, value in entries if tag == NEEDED
            }
        return names
