"""A migration while the previous version serves: its writers go on, and none waits without end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from time import monotonic, sleep

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from service.domain.errors import Unavailable
from service.store.connection import LOCK_TIMEOUT_S, make_engine
from service.store.integrity import Walked, verify
from service.store.migrate import stored_version, upgrade
from tests.migrations.recording import Replay, load

RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.jsonl"))
"""By the revision of the schema that each was made on."""
WRITERS = 3
MIGRATION_LOCK_S = 2.0
"""How long a migration waits for a lock, and others for those that it has."""
PATIENCE_S = 60.0
OVERHEAD_S = 10.0
"""Of a busy machine, beside the wait for a lock."""


def libpq(url: str) -> str:
    return url.replace("postgresql+psycopg", "postgresql")


def migrations(url: str = "") -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["url"] = url
    return config


NEWEST = ScriptDirectory.from_config(migrations()).get_current_head()
released_since = pytest.mark.skipif(
    RECORDED[-1].stem == NEWEST, reason="no migration since the last recording"
)


@dataclass(slots=True)
class Writer:
    replay: Replay
    over: threading.Event
    lives: int = 0
    longest_s: float = 0.0
    failed: list[str] = field(default_factory=list)

    def write(self) -> None:
        try:
            while not self.over.is_set():
                began = monotonic()
                for _ in self.replay.life():
                    self.longest_s = max(self.longest_s, monotonic() - began)
                    began = monotonic()
                self.lives += 1
        except (psycopg.Error, AssertionError) as error:
            self.failed.append(f"{type(error).__name__}: {error}")


@contextmanager
def writing(url: str, recorded: Path) -> Iterator[list[Writer]]:
    """Processes of the version that was recorded, each with sessions of its own."""
    transactions = load(recorded)
    first = Replay(url, transactions)
    first.once()
    first.close()
    over = threading.Event()
    writers = [Writer(Replay(url, transactions), over) for _ in range(WRITERS)]
    threads = [threading.Thread(target=writer.write) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        over.set()
        for thread in threads:
            thread.join()
        for writer in writers:
            writer.replay.close()


def until(true: Callable[[], bool]) -> None:
    deadline = monotonic() + PATIENCE_S
    while not true():
        assert monotonic() < deadline
        sleep(0.02)


def all_wrote(writers: list[Writer], lives: int) -> None:
    """So many more each, or one of them has failed."""
    goals = [writer.lives + lives for writer in writers]
    until(
        lambda: (
            any(w.failed for w in writers)
            or all(w.lives >= goal for w, goal in zip(writers, goals, strict=True))
        )
    )


def chains_verify(url: str) -> None:
    engine = make_engine(url, application_name="checker")
    with engine.connect() as conn:
        assert list(verify(conn, Walked())) == []
    engine.dispose()


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_p3_the_previous_version_writes_before_during_and_after_an_upgrade(
    empty_database: str, recorded: Path
) -> None:
    command.upgrade(migrations(empty_database), recorded.stem)
    with writing(empty_database, recorded) as writers:
        # More often than a session takes to prepare its statements: a plan made on the old schema must do on the new.
        all_wrote(writers, 6)
        upgrade(empty_database)
        assert stored_version(empty_database) == NEWEST
        all_wrote(writers, 3)
    assert [failed for writer in writers for failed in writer.failed] == []
    assert max(writer.longest_s for writer in writers) < LOCK_TIMEOUT_S + OVERHEAD_S
    chains_verify(empty_database)


@released_since
def test_p3_an_upgrade_that_cannot_have_its_lock_gives_up_and_lets_the_writers_go_on(
    empty_database: str,
) -> None:
    recorded = RECORDED[-1]
    command.upgrade(migrations(empty_database), recorded.stem)
    with writing(empty_database, recorded) as writers, psycopg.connect(libpq(empty_database)) as holder:
        holder.execute("LOCK TABLE everturn_schema IN SHARE MODE")
        with pytest.raises(Unavailable, match="waited too long and changed nothing"):
            upgrade(empty_database)
        assert stored_version(empty_database) == recorded.stem
        all_wrote(writers, 1)
        holder.rollback()
        upgrade(empty_database)
        all_wrote(writers, 1)
    assert [failed for writer in writers for failed in writer.failed] == []
    assert max(writer.longest_s for writer in writers) < MIGRATION_LOCK_S + OVERHEAD_S
