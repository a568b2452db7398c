"""Deletes from the KV store what erasures have asked for; the rows say what is left to do, and what could not be done."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.domain.artifact import ArtifactId
from service.domain.errors import InvalidInput
from service.settings import Settings
from service.store import kv_deletions
from service.store.connection import make_engine
from service.store.kv_deletions import Deletion, Failure
from workers import kv_upkeep
from workers.kv_connector.catalog import Catalog, Contents
from workers.kv_connector.store import BlockStore, ObjectName, words
from workers.kv_connector.store_address import full_address, open_store
from workers.kv_upkeep import Removed, Selection

log = logging.getLogger(__name__)

BATCH = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """`shared` blocks stay, since conversations that nobody erased begin with the same tokens."""

    artifacts: int = 0
    blocks: int = 0
    shared: int = 0
    missing: int = 0
    """Artifacts that are not in this store."""
    failed: tuple[tuple[ArtifactId, str], ...] = ()


def forget_erased(database: Engine, address: str, *, only: Collection[ArtifactId] | None = None) -> Forgotten:
    """Args:
    only: these, whatever became of them before; else some of what waits.
    """
    with database.begin() as conn:
        wanted = kv_deletions.claim(conn, store=address, limit=BATCH, only=only)
    if not wanted:
        return Forgotten()
    try:
        store = open_store(address)
        store.require(make=False)
        contents = Catalog(store).look()
    except (InvalidInput, OSError) as error:
        why = words(error) if isinstance(error, OSError) else str(error)
        return _settled(
            database, wanted, {one.artifact: Failure(why=why, left_names=one.left_names) for one in wanted}
        )
    return _forget(database, store, contents, wanted)


@contextmanager
def forgetting(settings: Settings, address: str) -> Iterator[Callable[[], None]]:
    """Gives what forgets some of what waits, whenever it is called; a database that does not answer is asked again the next time."""
    url = settings.database_url.get_secret_value()
    database = make_engine(url, application_name="everturn-kv-collector", pool_size=1)

    def forget() -> None:
        try:
            forgotten = forget_erased(database, full_address(address))
        except SQLAlchemyError as error:
            why = str(getattr(error, "orig", error)).partition("\n")[0]
            log.warning("KV of what was erased has to wait for the database: %s", why)
            return
        if forgotten.artifacts or forgotten.blocks:
            log.info(
                "deleted %d artifacts of what was erased, %d blocks", forgotten.artifacts, forgotten.blocks
            )

    try:
        yield forget
    finally:
        database.dispose()


def _forget(database: Engine, store: BlockStore, contents: Contents, wanted: Sequence[Deletion]) -> Forgotten:
    selection = Selection(artifacts=frozenset(one.artifact for one in wanted))
    chosen = kv_upkeep.choose(store, contents, selection)
    removed = kv_upkeep.forget(store, contents, chosen)
    left_over = _left_over(store, contents, wanted)
    why = dict([*removed.failed, *left_over.failed])
    failed = {}
    for listed in chosen.artifacts:
        names = tuple(block.name for block in listed.blocks if block.name in why)
        if listed.name in why or names:
            failed[listed.artifact] = Failure(why=_first(why, listed.name, *names), left_names=names)
    for one in wanted:
        names = tuple(ObjectName(name) for name in one.left_names if name in why)
        if names:
            failed[one.artifact] = Failure(why=_first(why, *names), left_names=names)
    found = {listed.artifact for listed in chosen.artifacts} | {
        one.artifact for one in wanted if one.left_names
    }
    unread = {found.name for found in contents.unanswered}
    for one in wanted:
        if any(name.endswith(f"/{one.artifact}.json") for name in unread):
            failed[one.artifact] = Failure(why="the store does not give its manifest")
    return _settled(database, wanted, failed, found=found, removed=removed, blocks=left_over.blocks)


def _left_over(store: BlockStore, contents: Contents, wanted: Sequence[Deletion]) -> Removed:
    """Blocks whose manifest an earlier try has deleted, unless another artifact needs them by now."""
    needed = contents.needed_by()
    names = [ObjectName(name) for one in wanted for name in one.left_names]
    return kv_upkeep.purge(store, [name for name in names if name in contents.blocks and not needed[name]])


def _settled(
    database: Engine,
    wanted: Sequence[Deletion],
    failed: dict[ArtifactId, Failure],
    *,
    found: Collection[ArtifactId] = (),
    removed: Removed | None = None,
    blocks: int = 0,
) -> Forgotten:
    gone = {one.artifact for one in wanted if one.artifact in found and one.artifact not in failed}
    missing = {one.artifact for one in wanted if one.artifact not in found and one.artifact not in failed}
    with database.begin() as conn:
        kv_deletions.settle(conn, gone=gone, missing=missing, failed=failed)
    for artifact, failure in failed.items():
        log.warning("KV of an erased conversation, %s, is still there: %s", artifact, failure.why)
    return Forgotten(
        artifacts=len(gone),
        blocks=blocks + (removed.blocks if removed else 0),
        shared=len(removed.shared) if removed else 0,
        missing=len(missing),
        failed=tuple((artifact, failure.why) for artifact, failure in failed.items()),
    )


def _first(why: dict[ObjectName, str], *names: ObjectName) -> str:
    name = next(name for name in names if name in why)
    return f"{name}: {why[name]}"
