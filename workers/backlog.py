"""When to ring again for what waits: less and less often."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.plan import RebuildQueue

FIRST_AGAIN_S = 2.0
LONGEST_AGAIN_S = 30.0


@dataclass(slots=True)
class Backlog:
    """A worker that is away for an hour must not find a flood of messages."""

    waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By rebuild or turn: when next, and how long after that again; monotonic seconds."""

    def due(self, stalled: Mapping[str, RebuildQueue], now: float) -> list[str]:
        self.waits = {one: wait for one, wait in self.waits.items() if one in stalled}
        due = [one for one in stalled if now >= self.waits.get(one, (now, 0.0))[0]]
        for one in due:
            again_s = self.waits.get(one, (now, FIRST_AGAIN_S))[1]
            self.waits[one] = (now + again_s, min(again_s * 2, LONGEST_AGAIN_S))
        return due
