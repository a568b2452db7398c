"""The sweeper: rebuilds that nobody works on are rung for again, less and less often."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from sqlalchemy import Engine, text

from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from service.store import rebuilds
from stack.valkey import EmbeddedValkey
from tests.workers.brokers import client_of
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import make_waiting
from workers.backlog import LONGEST_AGAIN_S, Backlog
from workers.rebuild_runner import LEASE_S
from workers.sweeper import PERIOD_S, sweep

INTERACTIVE = RebuildQueue.INTERACTIVE


@pytest.fixture
def broker_url(valkey_server: EmbeddedValkey) -> str:
    url = valkey_server.url(7)
    with client_of(url) as client:
        client.flushdb()
    return url


@pytest.fixture
def doorbell(broker_url: str) -> Iterator[Doorbell]:
    doorbell = Doorbell(broker_url)
    yield doorbell
    doorbell.close()


def test_what_a_dead_worker_held_is_rung_for_again_within_five_seconds() -> None:
    """Its lease runs out, and at the next sweep somebody is rung for."""
    lease_and_sweep_s = LEASE_S + PERIOD_S
    assert lease_and_sweep_s < 5
    assert Backlog().due({"rb_1": INTERACTIVE}, 0.0) == ["rb_1"], "at once"


def rung(broker_url: str) -> int:
    with client_of(broker_url) as client:
        return int(client.llen(RebuildQueue.INTERACTIVE))


def age(store: Engine) -> None:
    with store.begin() as conn:
        conn.execute(text("UPDATE rebuilds SET created_at = created_at - interval '1 min'"))


def test_a_rebuild_that_nobody_took_is_rung_for_again(
    store: Engine, prefiller: PrefillEngine, doorbell: Doorbell, broker_url: str
) -> None:
    make_waiting(store)
    sweep(store, doorbell, Backlog())
    assert rung(broker_url) == 0, "it was queued a moment ago"
    age(store)
    backlog = Backlog()
    sweep(store, doorbell, backlog)
    sweep(store, doorbell, backlog)
    assert rung(broker_url) == 1, "once, until some time has passed"


def test_a_rebuild_whose_worker_is_gone_is_rung_for_again(
    store: Engine, prefiller: PrefillEngine, doorbell: Doorbell, broker_url: str
) -> None:
    waiting = make_waiting(store)
    age(store)
    with store.begin() as conn:
        rebuilds.claim(conn, rebuild=waiting.rebuild, owner="alive", lease_s=60)
    sweep(store, doorbell, Backlog())
    assert rung(broker_url) == 0
    with store.begin() as conn:
        conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp() - interval '1 s'"))
    sweep(store, doorbell, Backlog())
    assert rung(broker_url) == 1


def test_the_backlog_rings_less_and_less_often() -> None:
    backlog = Backlog()
    rings = [s for s in range(200) if backlog.due({"rb_1": INTERACTIVE}, now=float(s))]
    gaps = [later - earlier for earlier, later in pairwise(rings)]
    assert gaps[:4] == [2, 4, 8, 16]
    assert set(gaps[4:]) == {LONGEST_AGAIN_S}


def test_the_backlog_forgets_what_is_no_longer_stalled() -> None:
    backlog = Backlog()
    assert backlog.due({"rb_1": INTERACTIVE}, now=0.0) == ["rb_1"]
    assert backlog.due({}, now=0.5) == []
    assert backlog.due({"rb_1": INTERACTIVE}, now=1.0) == ["rb_1"]
