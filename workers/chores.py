"""What the beat sees to besides sweeping: rollouts, retention, and a checkpoint every so often."""

import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from sqlalchemy import Engine

from service.domain.errors import Unavailable
from service.queue import CHECKPOINT_TASK, Doorbell
from service.settings import Settings
from workers.checkpoints import Schedule
from workers.retention import Rounds
from workers.rollouts import advance_rollouts

log = logging.getLogger(__name__)

LOOKED_AT = 10
"""Conversations at each step: a sweep comes after it."""
ASK_AGAIN_S = 60.0
"""Longer than a worker that is not busy takes to write one."""


@dataclass(slots=True, kw_only=True)
class Chores:
    rounds: Rounds
    checkpoints: Schedule | None
    warm_min_tokens: int
    ask_s: float = 0.0
    """When a checkpoint may be asked for next, monotonic."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            rounds=Rounds(every_s=settings.retention_every_s),
            checkpoints=Schedule.of(settings) if settings.checkpoint_folder else None,
            warm_min_tokens=settings.warm_min_tokens,
        )

    def step(self, database: Engine, doorbell: Doorbell) -> None:
        """Raises: SQLAlchemyError where the database cannot be used now."""
        advance_rollouts(database, doorbell.ring, warm_min_tokens=self.warm_min_tokens)
        self.rounds.step(database, LOOKED_AT)
        if self.checkpoints is None or time.monotonic() < self.ask_s:
            return
        if self.checkpoints.due(datetime.now(UTC)).exists():
            return
        self.ask_s = time.monotonic() + ASK_AGAIN_S
        try:
            doorbell.call(CHECKPOINT_TASK)
        except Unavailable as error:
            log.warning("%s", error)
