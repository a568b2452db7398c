"""What an operator does to stored KV: choose artifacts, check every byte of them, put them aside, or forget them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from service.domain.artifact import ArtifactId, BootId
from workers.kv_connector.block_file import BlockHeader, BlockUnreadable, checksum
from workers.kv_connector.catalog import Contents, Listed, ListedBlock
from workers.kv_connector.store import BlockStore, ObjectName, own_name, words

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
    blocks: frozenset[ObjectName]
    """Beyond those that only these artifacts name: whichever the chosen boot made, and orphans under the chosen revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    artifact: ArtifactId
    name: ObjectName
    what: str


@dataclass(slots=True)
class Removed:
    artifacts: int = 0
    blocks: int = 0
    bytes: int = 0
    shared: dict[ObjectName, int] = field(default_factory=dict)
    """Blocks that stay, and how many artifacts outside the choice still name each."""
    failed: list[tuple[ObjectName, str]] = field(default_factory=list)


def choose(store: BlockStore, contents: Contents, selection: Selection) -> Chosen:
    """By boot, also the artifacts of others that name one of its blocks. Raises: OSError."""
    made = _made_by(store, contents, selection.boot) if selection.boot is not None else frozenset()
    artifacts = [
        listed
        for listed in contents.artifacts
        if _matches(listed, selection)
        and (
            selection.boot is None
            or listed.producer == selection.boot
            or any(block.name in made for block in listed.blocks)
        )
    ]
    if selection.artifacts is not None or selection.since_ms is not None or selection.until_ms is not None:
        # Artifacts outside the choice may need whichever of them they name.
        return Chosen(artifacts=tuple(artifacts), blocks=frozenset())
    orphans = frozenset(orphan.name for orphan in contents.orphans())
    wanted = orphans if selection.boot is None else made
    return Chosen(
        artifacts=tuple(artifacts),
        blocks=frozenset(name for name in wanted if _under(name, selection.revision)),
    )


def _matches(listed: Listed, selection: Selection) -> bool:
    return (
        (selection.artifacts is None or listed.artifact in selection.artifacts)
        and (selection.revision is None or listed.revision.startswith(selection.revision))
        and (selection.since_ms is None or listed.created_ms >= selection.since_ms)
        and (selection.until_ms is None or listed.created_ms < selection.until_ms)
    )


def _made_by(store: BlockStore, contents: Contents, boot: BootId) -> frozenset[ObjectName]:
    return frozenset(name for name in contents.blocks if _producer(store, name) == boot)


def _producer(store: BlockStore, name: ObjectName) -> BootId | None:
    try:
        with store.open(name) as file:
            return BlockHeader.read_from(file).producer
    except (FileNotFoundError, BlockUnreadable):
        return None


def _under(name: ObjectName, revision: str | None) -> bool:
    return revision is None or name.split("/")[-2].startswith(revision)


def verify(store: BlockStore, artifacts: Iterable[Listed]) -> list[Problem]:
    """Reads every block once, however many artifacts name it."""
    known: dict[tuple[ObjectName, str, int], str | None] = {}
    problems = []
    for listed in artifacts:
        for block in listed.blocks:
            what = (block.name, block.checksum, block.size)
            if what not in known:
                known[what] = _damage(store, listed, block)
            if damage := known[what]:
                problems.append(Problem(artifact=listed.artifact, name=block.name, what=damage))
    return problems


def _damage(store: BlockStore, listed: Listed, block: ListedBlock) -> str | None:
    try:
        with store.open(block.name) as file:
            header = BlockHeader.read_from(file)
            digest, length = checksum(), 0
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                length += len(chunk)
    except FileNotFoundError:
        return "is missing"
    except BlockUnreadable as error:
        return f"cannot be read: {error}"
    except OSError as error:
        return f"cannot be read: {words(error)}"
    if (header.revision, header.tenant, header.key) != (listed.revision, listed.tenant, own_name(block.name)):
        return "is another block, by its own header"
    if (length, digest.hexdigest()) != (block.size, header.checksum):
        return "is not what was written"
    return None if header.checksum == block.checksum else "was written anew since the manifest"


def quarantine(store: BlockStore, contents: Contents, chosen: Chosen) -> Removed:
    """Nothing that is put aside is found by an engine any more; it is kept for a week."""
    return _remove(contents, chosen, store.put_aside)


def forget(store: BlockStore, contents: Contents, chosen: Chosen) -> Removed:
    return _remove(contents, chosen, store.remove)


def _remove(contents: Contents, chosen: Chosen, remove: Callable[[ObjectName], object]) -> Removed:
    """Manifests first: whoever comes meanwhile finds nothing rather than half."""
    removed = Removed()
    going: list[Listed] = []
    for listed in chosen.artifacts:
        if _done(listed.name, remove, removed):
            removed.artifacts += 1
            going.append(listed)
    elsewhere = contents.needed_by()
    for listed in going:
        elsewhere.subtract({block.name for block in listed.blocks})
    blocks = {block.name for listed in going for block in listed.blocks} | chosen.blocks
    for name in sorted(blocks):
        if elsewhere[name] > 0 and name not in chosen.blocks:
            removed.shared[name] = elsewhere[name]
        elif name in contents.blocks and _done(name, remove, removed):
            removed.blocks += 1
            removed.bytes += contents.blocks[name].size
    return removed


def _done(name: ObjectName, remove: Callable[[ObjectName], object], removed: Removed) -> bool:
    try:
        remove(name)
    except OSError as error:
        removed.failed.append((name, words(error)))
        return False
    return True


def purge(store: BlockStore, names: Sequence[ObjectName]) -> Removed:
    """Of what lies in quarantine."""
    removed = Removed()
    for name in names:
        removed.blocks += _done(name, store.remove, removed)
    return removed
