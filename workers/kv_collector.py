"""Keeps a KV store within its limits: expired artifacts go, then those used longest ago; then blocks that nobody names.

`python -m workers.kv_collector --store STORE`. It runs beside the engines and never in their way; one at a time works on a store.
"""

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from service.domain.errors import InvalidInput
from service.settings import read_settings
from workers.kv_connector.catalog import Catalog, Contents, Listed
from workers.kv_connector.store import BlockStore, ObjectName, StoredObject, words
from workers.kv_connector.store_address import HELP, open_store
from workers.kv_forgetter import forgetting

log = logging.getLogger(__name__)

PERIOD_S = 30.0
QUARANTINED_MS = 7 * 86_400_000
LEFT_OVER_MS = 3_600_000
GIB = 1 << 30


class Why(StrEnum):
    EXPIRED = "expired"
    TOO_OLD = "too old"
    OVER_BUDGET = "over the budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    budget_bytes: int | None = None
    max_age_ms: int | None = None
    """Since an artifact was last used."""


@dataclass(frozen=True, slots=True)
class Collected:
    evicted: tuple[tuple[Listed, Why], ...]
    blocks: int
    bytes: int
    """Freed."""


def choose(artifacts: Sequence[Listed], limits: Limits, now_ms: int) -> list[tuple[Listed, Why]]:
    """What has to go; of the rest, those used longest ago until what remains fits the budget. Shared blocks count once."""
    chosen: list[tuple[Listed, Why]] = []
    staying = []
    for artifact in sorted(artifacts, key=lambda a: (a.used_ms, a.artifact)):
        if artifact.expires_ms <= now_ms:
            chosen.append((artifact, Why.EXPIRED))
        elif limits.max_age_ms is not None and artifact.used_ms <= now_ms - limits.max_age_ms:
            chosen.append((artifact, Why.TOO_OLD))
        else:
            staying.append(artifact)
    if limits.budget_bytes is not None:
        chosen += [(artifact, Why.OVER_BUDGET) for artifact in _over_budget(staying, limits.budget_bytes)]
    return chosen


def _over_budget(oldest_first: Sequence[Listed], budget_bytes: int) -> Iterator[Listed]:
    needed: dict[ObjectName, int] = {}
    total = 0
    for artifact in oldest_first:
        for block in artifact.blocks:
            total += 0 if block.name in needed else block.size
            needed[block.name] = needed.get(block.name, 0) + 1
    for artifact in oldest_first:
        if total <= budget_bytes:
            return
        for block in artifact.blocks:
            needed[block.name] -= 1
            total -= 0 if needed[block.name] else block.size
        yield artifact


class Collector:
    def __init__(self, store: BlockStore, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._catalog = Catalog(store)
        self._orphaned_at: dict[ObjectName, int] = {}

    def collect(self, now_ms: int) -> Collected:
        """One pass. An evicted artifact's blocks stay for the store's grace, for whoever reads them just now.

        Raises:
            OSError: the store does not answer.
        """
        contents = self._catalog.look()
        evicted = [
            (artifact, why)
            for artifact, why in choose(contents.artifacts, self._limits, now_ms)
            if self._removed(artifact.name)
        ]
        removed = {artifact.name for artifact, _ in evicted}
        left = replace(contents, artifacts=tuple(a for a in contents.artifacts if a.name not in removed))
        gone = [orphan for orphan in self._ripe(left, now_ms) if self._removed(orphan.name)]
        for found in _useless(contents, now_ms):
            self._removed(found.name)
        return Collected(tuple(evicted), len(gone), sum(orphan.size for orphan in gone))

    def _ripe(self, contents: Contents, now_ms: int) -> list[StoredObject]:
        """Orphans for long enough: neither a load nor a publication can still be under way."""
        orphans = contents.orphans()
        since = {o.name: self._orphaned_at.get(o.name, now_ms) for o in orphans}
        self._orphaned_at = since
        last_ms = now_ms - self._store.grace_ms
        return [o for o in orphans if since[o.name] <= last_ms and o.changed_ms <= last_ms]

    def _removed(self, name: ObjectName) -> bool:
        try:
            return self._store.remove(name)
        except OSError as error:
            log.warning("%s cannot be removed: %s", name, words(error))
            return False


def _useless(contents: Contents, now_ms: int) -> Iterator[StoredObject]:
    for found, kept_ms in (
        *((each, QUARANTINED_MS) for each in (*contents.quarantined, *contents.unreadable)),
        *((each, LEFT_OVER_MS) for each in contents.leftovers),
    ):
        if found.changed_ms <= now_ms - kept_ms:
            yield found


def run(
    store: BlockStore, limits: Limits, passes: Iterable[None], forget: Callable[[], None] = lambda: None
) -> None:
    """One pass for each of `passes`, after what has to be forgotten; a store that does not answer is tried again at the next."""
    collector = Collector(store, limits)
    for _ in passes:
        try:
            with store.alone() as alone:
                if not alone:
                    continue
                forget()
                collected = collector.collect(time.time_ns() // 1_000_000)
        except OSError as error:
            log.warning("the KV store %s has to wait for its collector: %s", store.address, words(error))
            continue
        for artifact, why in collected.evicted:
            log.info("evicted %s: %s", artifact.artifact, why)
        if collected.blocks:
            log.info("removed %d blocks, %.1f MB", collected.blocks, collected.bytes / 1e6)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.kv_collector", description=__doc__)
    parser.add_argument("--store", required=True, help=HELP)
    parser.add_argument("--budget-gib", type=float, help="evict what was used longest ago beyond this")
    parser.add_argument("--max-age-h", type=float, help="evict what was not used for so many hours")
    parser.add_argument("--every-s", type=float, default=PERIOD_S, help="(default: %(default)s)")
    parser.add_argument(
        "--forget-erased",
        action="store_true",
        help="also delete the KV of erased conversations, as the database of EVERTURN_DATABASE_URL asks",
    )
    given = parser.parse_args(arguments)
    for option, value in (
        ("--budget-gib", given.budget_gib),
        ("--max-age-h", given.max_age_h),
        ("--every-s", given.every_s),
    ):
        if value is not None and not value > 0:
            parser.error(f"{option} {value} must be greater than 0")
    limits = Limits(
        budget_bytes=None if given.budget_gib is None else int(given.budget_gib * GIB),
        max_age_ms=None if given.max_age_h is None else int(given.max_age_h * 3_600_000),
    )
    try:
        store = open_store(given.store)
        store.require(make=True)
    except InvalidInput as error:
        parser.error(f"--store {error}")
    passes = _every(given.every_s)
    if not given.forget_erased:
        run(store, limits, passes)
        return 0
    try:
        settings = read_settings()
    except InvalidInput as error:
        parser.error(f"--forget-erased: {error}")
    with forgetting(settings, given.store) as forget:
        run(store, limits, passes, forget)
    return 0


def _every(seconds: float) -> Iterator[None]:
    while True:
        yield
        time.sleep(seconds)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main(sys.argv[1:]))
