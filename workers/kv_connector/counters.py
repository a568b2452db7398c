"""What the connector counts of what really happened, in a file that the engine's front shows as Prometheus text.

Numbers at fixed places of a mapped file: counting costs the scheduler no system call.
"""

import mmap
import struct
from enum import StrEnum
from pathlib import Path

from service.domain.artifact import RefusalReason
from service.domain.evidence import Loaded, Published

FILE = "counters"
NUMBER = struct.Struct("<d")


class Count(StrEnum):
    REQUESTS = "requests"
    HITS = "hits"
    HIT_TOKENS = "hit_tokens"
    HIT_BYTES = "hit_bytes"
    HIT_SECONDS = "hit_seconds"
    MISSES = "misses"
    REFUSALS = "refusals"
    PUBLISHED = "published"
    PUBLISHED_BYTES = "published_bytes"
    PUBLISH_FAILURES = "publish_failures"
    PUBLISH_DROPPED = "publish_dropped"
    WEIGHT_CHANGES = "weight_changes"


HELP = {
    Count.REQUESTS: "Requests whose block hashes were rooted in this engine's revision and their tenant.",
    Count.HITS: "Requests that computed on stored KV, after every check.",
    Count.HIT_TOKENS: "Tokens of stored KV that requests computed on.",
    Count.HIT_BYTES: "Bytes of stored KV read, verified and copied into the engine.",
    Count.HIT_SECONDS: "Time spent reading, verifying and copying them.",
    Count.MISSES: "Requests that were offered nothing, or nothing that the engine had not itself.",
    Count.REFUSALS: "Artifacts that this engine would not read.",
    Count.PUBLISHED: "Artifacts published.",
    Count.PUBLISHED_BYTES: "Bytes of the artifacts published.",
    Count.PUBLISH_FAILURES: "Publications that were asked for and did not happen.",
    Count.WEIGHT_CHANGES: "Times that the weights in memory were found to be others than those measured.",
    Count.PUBLISH_DROPPED: "Those of them not tried, as too many waited or the store did not answer.",
}

SERIES: tuple[tuple[Count, str | None], ...] = tuple(
    (count, reason) for count in Count for reason in (RefusalReason if count is Count.REFUSALS else (None,))
)
_OFFSETS = {series: index * NUMBER.size for index, series in enumerate(SERIES)}
_SIZE = len(SERIES) * NUMBER.size


class Counters:
    """Written by the scheduler side alone; from zero at each boot."""

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / FILE
        # A new file each time: one that is mapped by a reader must not shrink under it.
        path.unlink(missing_ok=True)
        path.write_bytes(bytes(_SIZE))
        with path.open("r+b") as file:
            self._numbers = mmap.mmap(file.fileno(), _SIZE)

    def add(self, count: Count, amount: float = 1, *, reason: RefusalReason | None = None) -> None:
        offset = _OFFSETS[count, reason]
        NUMBER.pack_into(self._numbers, offset, NUMBER.unpack_from(self._numbers, offset)[0] + amount)

    def add_hit(self, loaded: Loaded) -> None:
        self.add(Count.HITS)
        self.add(Count.HIT_TOKENS, loaded.tokens)
        self.add(Count.HIT_BYTES, loaded.bytes)
        self.add(Count.HIT_SECONDS, loaded.seconds)

    def add_publication(self, published: Published) -> None:
        self.add(Count.PUBLISHED)
        self.add(Count.PUBLISHED_BYTES, published.bytes)


def read_counters(run_dir: Path) -> dict[tuple[Count, str | None], float]:
    """Empty until the connector is up."""
    try:
        data = (run_dir / FILE).read_bytes()
    except FileNotFoundError:
        return {}
    if len(data) != _SIZE:
        return {}
    return {series: NUMBER.unpack_from(data, offset)[0] for series, offset in _OFFSETS.items()}


def as_prometheus(counters: dict[tuple[Count, str | None], float]) -> str:
    lines = []
    for count in Count:
        name = f"everturn_kv_{count}_total"
        lines += [f"# HELP {name} {HELP[count]}", f"# TYPE {name} counter"]
        for (kind, reason), number in counters.items():
            if kind is count:
                label = "" if reason is None else f'{{reason="{reason}"}}'
                lines.append(f"{name}{label} {number:.17g}")
    return "\n".join(lines) + "\n"
