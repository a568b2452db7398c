"""What an operator does to stored KV: choose artifacts, check every byte of them, put them aside, or forget them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from service.domain.artifact import ArtifactId, BootId
from workers.kv_connector.block_file import BlockHeader, BlockUnreadable
from workers.kv_connector.catalog import Contents, Listed
from workers.kv_connector.store import BlockStore

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """An artifact must match all that is given; None asks for nothing."""

    artifacts: frozenset[ArtifactId] | None = None
    revision: str | None = None
    """A digest, or as much of its beginning as tells it apart."""
    boot: BootId | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """When it was made: from `since_ms` on, before `until_ms`."""

    @property
    def is_everything(self) -> bool:
        return self == Selection()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    artifacts: tuple[Listed, ...]
    blocks: frozenset[Path]
    """Beyond those that only these artifacts name: whichever the chosen boot made, and orphans under the chosen revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    artifact: ArtifactId
    path: Path
    what: str


@dataclass(slots=True)
class Removed:
    artifacts: int = 0
    blocks: int = 0
    bytes: int = 0
    shared: dict[Path, int] = field(default_factory=dict)
    """Blocks that stay, and how many artifacts outside the choice still name each."""
    failed: list[tuple[Path, str]] = field(default_factory=list)


def choose(contents: Contents, selection: Selection) -> Chosen:
    """By boot, also the artifacts of others that name one of its blocks. Raises: OSError."""
    made = _made_by(contents, selection.boot) if selection.boot is not None else frozenset()
    artifacts = [
        listed
        for listed in contents.artifacts
        if _matches(listed, selection)
        and (
            selection.boot is None
            or listed.producer == selection.boot
            or any(block.path in made for block in listed.blocks)
        )
    ]
    if selection.artifacts is not None or selection.since_ms is not None or selection.until_ms is not None:
        # Artifacts outside the choice may need whichever of them they name.
        return Chosen(artifacts=tuple(artifacts), blocks=frozenset())
    orphans = frozenset(orphan.path for orphan in contents.orphans())
    wanted = orphans if selection.boot is None else made
    return Chosen(
        artifacts=tuple(artifacts),
        blocks=frozenset(path for path in wanted if _under(path, selection.revision)),
    )


def _matches(listed: Listed, selection: Selection) -> bool:
    return (
        (selection.artifacts is None or listed.artifact in selection.artifacts)
        and (selection.revision is None or listed.revision.startswith(selection.revision))
        and (selection.since_ms is None or listed.created_ms >= selection.since_ms)
        and (selection.until_ms is None or listed.created_ms < selection.until_ms)
    )


def _made_by(contents: Contents, boot: BootId) -> frozenset[Path]:
    return frozenset(path for path in contents.blocks if _producer(path) == boot)


def _producer(path: Path) -> BootId | None:
    try:
        with path.open("rb") as file:
            return BlockHeader.read_from(file).producer
    except (FileNotFoundError, BlockUnreadable):
        return None


def _under(path: Path, revision: str | None) -> bool:
    return revision is None or path.parent.name.startswith(revision)


def verify(artifacts: Iterable[Listed]) -> list[Problem]:
    """Reads every block once, however many artifacts name it."""
    known: dict[tuple[Path, str, int], str | None] = {}
    problems = []
    for listed in artifacts:
        for block in listed.blocks:
            what = (block.path, block.checksum, block.size)
            if what not in known:
                known[what] = _damage(listed, *what)
            if damage := known[what]:
                problems.append(Problem(artifact=listed.artifact, path=block.path, what=damage))
    return problems


def _damage(listed: Listed, path: Path, checksum: str, size: int) -> str | None:
    try:
        with path.open("rb") as file:
            header = BlockHeader.read_from(file)
            digest, length = sha256(), 0
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                length += len(chunk)
    except FileNotFoundError:
        return "is missing"
    except BlockUnreadable as error:
        return f"cannot be read: {error}"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if (header.revision, header.tenant, header.key) != (listed.revision, listed.tenant, path.name):
        return "is another block, by its own header"
    if (length, digest.hexdigest()) != (size, header.checksum):
        return "is not what was written"
    return None if header.checksum == checksum else "was written anew since the manifest"


def quarantine(store: BlockStore, contents: Contents, chosen: Chosen) -> Removed:
    """Nothing that is put aside is found by an engine any more; it is kept for a week."""
    return _remove(contents, chosen, store.put_aside)


def forget(contents: Contents, chosen: Chosen) -> Removed:
    return _remove(contents, chosen, lambda path: path.unlink(missing_ok=True))


def _remove(contents: Contents, chosen: Chosen, remove: Callable[[Path], None]) -> Removed:
    """Manifests first: whoever comes meanwhile finds nothing rather than half."""
    removed = Removed()
    going: list[Listed] = []
    for listed in chosen.artifacts:
        if _done(listed.path, remove, removed):
            removed.artifacts += 1
            going.append(listed)
    elsewhere = contents.needed_by()
    for listed in going:
        elsewhere.subtract({block.path for block in listed.blocks})
    blocks = {block.path for listed in going for block in listed.blocks} | chosen.blocks
    for path in sorted(blocks):
        if elsewhere[path] > 0 and path not in chosen.blocks:
            removed.shared[path] = elsewhere[path]
        elif path in contents.blocks and _done(path, remove, removed):
            removed.blocks += 1
            removed.bytes += contents.blocks[path].size
    return removed


def _done(path: Path, remove: Callable[[Path], None], removed: Removed) -> bool:
    try:
        remove(path)
    except OSError as error:
        removed.failed.append((path, error.strerror or str(error)))
        return False
    return True


def purge(paths: Sequence[Path]) -> Removed:
    """Of what lies in quarantine."""
    removed = Removed()
    for path in paths:
        removed.blocks += _done(path, lambda each: each.unlink(missing_ok=True), removed)
    return removed
