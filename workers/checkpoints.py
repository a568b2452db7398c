"""A signed checkpoint of the log's heads for every hour or so, as files in a folder that should lie outside the database's reach."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sqlalchemy import Engine

from service.domain.errors import InvalidInput
from service.settings import Settings
from service.store import checkpoint
from service.store.signing import load_or_make_key

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    folder: Path
    every_s: float
    key: Path

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Raises: InvalidInput: no key to sign with, or no folder to write to."""
        if not settings.checkpoint_key:
            raise InvalidInput(
                "EVERTURN_CHECKPOINT_FOLDER is set, and EVERTURN_CHECKPOINT_KEY is not: name a file for the key that "
                "signs the checkpoints; it is made if it is missing."
            )
        folder = Path(settings.checkpoint_folder)
        if not folder.is_dir():
            raise InvalidInput(
                f"EVERTURN_CHECKPOINT_FOLDER: {folder} is no folder; make it, or name another."
            )
        return cls(folder=folder, every_s=settings.checkpoint_every_s, key=Path(settings.checkpoint_key))

    def due(self, now: datetime) -> Path:
        """The file of the period that `now` is in."""
        begun = now.timestamp() // self.every_s * self.every_s
        return self.folder / f"heads-{datetime.fromtimestamp(begun, UTC):%Y-%m-%dT%H-%M-%SZ}.jsonl"


def write_checkpoint(database: Engine, schedule: Schedule, now: datetime) -> Path | None:
    """None where this period has its checkpoint: several workers may share a folder.

    Raises:
        InvalidInput: it cannot be written, or the key is none of ours.
    """
    path = schedule.due(now)
    if path.exists():
        return None
    key = load_or_make_key(schedule.key)
    with database.connect() as conn:
        conn.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        with conn.begin():
            try:
                count = checkpoint.write(path, checkpoint.heads(conn), key, now)
            except InvalidInput:
                if path.exists():
                    return None
                raise
    log.info("%s: the heads of %d streams", path, count)
    return path
