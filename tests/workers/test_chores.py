"""What the beat sees to besides sweeping: asked for when it is due, not again at once, and not at all where nothing is set."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine

from service.domain.errors import InvalidInput
from service.domain.plan import RebuildQueue
from service.queue import CHECKPOINT_TASK, Doorbell
from service.settings import Settings
from service.store import keys, retention
from service.store.checkpoint import check_signature
from service.store.signing import load_public_key
from stack.valkey import EmbeddedValkey
from tests.store.histories import ACME, CHAT, NOW, created, said, store
from tests.workers.brokers import client_of
from workers.checkpoints import Schedule, write_checkpoint
from workers.chores import Chores


@pytest.fixture
def broker_url(valkey_server: EmbeddedValkey) -> str:
    url = valkey_server.url(8)
    with client_of(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def doorbell(broker_url: str) -> Iterator[Doorbell]:
    made = Doorbell(broker_url)
    yield made
    made.close()


def settings(broker_url: str = "redis://127.0.0.1:9/0", **given: object) -> Settings:
    fixed = {"database_url": SecretStr("postgresql://x"), "broker_url": SecretStr(broker_url)}
    return Settings.model_validate(fixed | given)


def rung(broker_url: str) -> list[str]:
    with client_of(broker_url) as client:
        messages = [str(one) for one in client.lrange(RebuildQueue.BACKGROUND, 0, -1)]
    return [CHECKPOINT_TASK for one in messages if CHECKPOINT_TASK in one]


def test_where_no_folder_is_set_no_checkpoint_is_asked_for(
    engine: Engine, doorbell: Doorbell, broker_url: str
) -> None:
    Chores.of(settings()).step(engine, doorbell)
    assert rung(broker_url) == []


def test_a_dead_broker_keeps_no_retention_from_its_round(engine: Engine, tmp_path: Path) -> None:
    store(engine, created(), said("hi"))
    with engine.begin() as conn:
        keys.create_tenant(conn, ACME)
        retention.set_retention(conn, ACME, after_days=1, by="test", now=NOW)
    dead = Doorbell("redis://127.0.0.1:9/0")
    checkpoints = {"checkpoint_folder": str(tmp_path), "checkpoint_key": str(tmp_path / "audit.key")}
    Chores.of(settings(**checkpoints)).step(engine, dead)
    dead.close()
    with engine.begin() as conn:
        assert retention.last_at(conn, ACME, CHAT) is None


def test_a_checkpoint_is_asked_for_until_the_hour_has_one(
    engine: Engine, doorbell: Doorbell, broker_url: str, tmp_path: Path
) -> None:
    store(engine, created(), said("hi"))
    given = settings(checkpoint_folder=str(tmp_path), checkpoint_key=str(tmp_path / "audit.key"))
    Chores.of(given).step(engine, doorbell)
    assert rung(broker_url) == [CHECKPOINT_TASK]
    schedule = Schedule.of(given)
    written = write_checkpoint(engine, schedule, datetime.now(UTC))
    assert written is not None
    assert check_signature(written, load_public_key(tmp_path / "audit.key.pub")) == 1
    if schedule.due(datetime.now(UTC)) == written:
        Chores.of(given).step(engine, doorbell)
        assert rung(broker_url) == [CHECKPOINT_TASK], "not again"


def test_each_period_has_one_checkpoint_named_by_its_beginning(engine: Engine, tmp_path: Path) -> None:
    schedule = Schedule(folder=tmp_path, every_s=3600, key=tmp_path / "audit.key")
    first = write_checkpoint(engine, schedule, NOW)
    assert first == tmp_path / "heads-2026-01-02T03-00-00Z.jsonl"
    assert write_checkpoint(engine, schedule, NOW + timedelta(minutes=50)) is None
    assert write_checkpoint(engine, schedule, NOW + timedelta(minutes=60)) == (
        tmp_path / "heads-2026-01-02T04-00-00Z.jsonl"
    )


def test_a_folder_without_a_key_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="EVERTURN_CHECKPOINT_KEY is not"):
        Schedule.of(settings(checkpoint_folder=str(tmp_path)))
    with pytest.raises(InvalidInput, match="nowhere is no folder"):
        Schedule.of(settings(checkpoint_folder=str(tmp_path / "nowhere"), checkpoint_key="k"))
