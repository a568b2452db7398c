"""Which file systems keep what they say of a file: elsewhere inode and times are made up, and tell no rewrite."""

from dataclasses import dataclass
from pathlib import Path
from re import sub

MOUNT_TABLE = Path("/proc/self/mountinfo")

TRUSTED = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "tmpfs", "xfs", "zfs"})
"""Of a kernel's own, on a disk or in memory: every write moves a file's ctime. Not FUSE, squashfs, overlays, or any across a network."""


@dataclass(frozen=True, slots=True)
class Mounts:
    kinds: dict[Path, str]
    """Of file systems, by where they are mounted."""

    @classmethod
    def read(cls, table: Path) -> "Mounts":
        """As Linux gives it; nothing is known, and so nothing trusted, where there is none."""
        try:
            lines = table.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            return cls({})
        return cls(dict(_mount(line) for line in lines if " - " in line))

    def keep_times(self, path: Path) -> bool:
        """Of the file itself, wherever links to it lie."""
        where = path.resolve()
        kind = next((self.kinds[folder] for folder in (where, *where.parents) if folder in self.kinds), "")
        return kind in TRUSTED


def _mount(line: str) -> tuple[Path, str]:
    """A later line of the same place lies on top of an earlier one."""
    before, _, after = line.partition(" - ")
    folder = sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), before.split()[4])
    return Path(folder), after.split()[0]
