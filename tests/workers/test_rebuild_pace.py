"""A warm-up keeps its rollout's pace by resting after a chunk, and rests for nobody who waits."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from service import rebuild_flow, rebuild_run_flow
from service.settings import Settings
from service.store import fleet
from tests.domain.descriptors import V13
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.rolling import begin
from tests.workers.waiting import WINDOW, Waiting, make_waiting, make_warming
from workers import rebuild_pace, rebuild_runner
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild

CHUNK = PACE = 32
"""The window has 128 tokens: four chunks, or four seconds."""
BY_CHUNKS = [32, 64, 96, 128]


@dataclass(slots=True)
class Clock:
    """In the place of the module `time`: whoever sleeps has slept at once."""

    slept: list[float] = field(default_factory=list)
    meanwhile: Callable[[], object] = lambda: None
    """What happens while somebody sleeps for the first time."""

    def monotonic(self) -> float:
        return time.monotonic() + sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) == 1:
            self.meanwhile()


@pytest.fixture
def process(database: str) -> Iterator[PoolProcess]:
    settings = Settings(database_url=SecretStr(database), rebuild_timeout_s=20, rebuild_chunk_tokens=CHUNK)
    process = PoolProcess.open(settings)
    yield process
    process.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (rebuild_pace, rebuild_runner):
        monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def warming(store: Engine, prefiller: PrefillEngine) -> Waiting:
    """For a rollout with a pace."""
    begin_at(store, PACE)
    return make_warming(store)


def begin_at(store: Engine, pace: int) -> None:
    """Turns want v13 all the same."""
    begin(store, warm=1, pace=pace)
    with store.begin() as conn:
        fleet.set_alias(conn, "production", V13.digest, None)


def ends(prefiller: PrefillEngine) -> list[int]:
    return [len(prefill["token_ids"]) for prefill in prefiller.prefills]


def test_what_went_quicker_is_rested_for_and_not_after_the_end(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine, clock: Clock
) -> None:
    began = time.monotonic()
    run_rebuild(process, warming.rebuild)
    took = time.monotonic() - began
    assert (ends(prefiller), prefiller.computed()) == (BY_CHUNKS, [32, 32, 32, 32])
    assert 3 - took <= sum(clock.slept) <= 3
    assert max(clock.slept) <= rebuild_pace.LOOK_EVERY_S


def test_who_is_slower_than_the_pace_does_not_rest(
    process: PoolProcess, store: Engine, prefiller: PrefillEngine, clock: Clock
) -> None:
    begin_at(store, 1_000_000)
    run_rebuild(process, make_warming(store).rebuild)
    assert (ends(prefiller), clock.slept) == (BY_CHUNKS, [])


def test_a_turn_that_joins_waits_for_no_rest(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine, clock: Clock
) -> None:
    clock.meanwhile = warming.ask
    run_rebuild(process, warming.rebuild)
    assert len(clock.slept) == 1
    assert ends(prefiller) == BY_CHUNKS
    assert (warming.row().state, warming.row().queue) == ("done", "interactive")


def test_a_turn_with_more_history_that_joins_gets_all_of_it(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine, clock: Clock
) -> None:
    def talks_on() -> None:
        warming.answer_on_the_old_revision()
        warming.ask()

    clock.meanwhile = talks_on
    run_rebuild(process, warming.rebuild)
    row = warming.row()
    assert row.tokens_total > len(WINDOW)
    assert (row.state, ends(prefiller)[-1], len(clock.slept)) == ("done", row.tokens_total, 1)


def test_it_gives_way_while_it_rests(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine, clock: Clock
) -> None:
    clock.meanwhile = lambda: make_waiting(warming.database)
    run_rebuild(process, warming.rebuild)
    row = warming.row()
    assert (row.state, row.tokens_done, row.owner) == ("queued", PACE, None)
    assert (ends(prefiller), len(clock.slept)) == ([PACE], 1)


def test_one_that_is_cancelled_while_it_rests_goes_on_with_nothing(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine, clock: Clock
) -> None:
    def cancel() -> None:
        with warming.database.begin() as conn:
            rebuild_flow.cancel(conn, warming.rebuild, by="ada")

    clock.meanwhile = cancel
    run_rebuild(process, warming.rebuild)
    assert (warming.row().state, warming.row().reason) == ("superseded", "cancelled by ada")
    assert (ends(prefiller), len(clock.slept)) == ([PACE], 1)


def test_a_database_that_is_away_while_it_rests_harms_nothing(
    process: PoolProcess,
    warming: Waiting,
    prefiller: PrefillEngine,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    really = rebuild_run_flow.go_on

    def away(*_: object) -> None:
        monkeypatch.setattr(rebuild_run_flow, "go_on", really)
        raise OperationalError("BEGIN", {}, Exception("the server is away"))

    monkeypatch.setattr(rebuild_run_flow, "go_on", away)
    began = time.monotonic()
    run_rebuild(process, warming.rebuild)
    took = time.monotonic() - began
    assert warming.row().state == "done"
    assert 3 - took <= sum(clock.slept) <= 3


def test_no_rest_is_longer_than_a_quarter_of_what_a_task_may_take(
    process: PoolProcess, store: Engine, prefiller: PrefillEngine, clock: Clock
) -> None:
    begin_at(store, 7)
    process = replace(process, settings=process.settings.model_copy(update={"rebuild_chunk_tokens": 64}))
    run_rebuild(process, make_warming(store).rebuild)
    assert ends(prefiller) == BY_CHUNKS
    assert sum(clock.slept) <= 3 * 20 / 4


def test_what_a_turn_waits_for_has_no_pace(
    process: PoolProcess, store: Engine, prefiller: PrefillEngine, clock: Clock
) -> None:
    begin_at(store, PACE)
    run_rebuild(process, make_waiting(store).rebuild)
    assert (ends(prefiller), clock.slept) == (BY_CHUNKS, [])
