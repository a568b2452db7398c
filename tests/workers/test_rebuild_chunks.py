"""A long rebuild goes in chunks: gone on with where it was left, stopped at the next one, and shared by whoever wants it."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text

from service import rebuild_flow
from service.domain.artifact import ArtifactId
from service.settings import Settings
from service.store import kv_deletions, rebuilds
from tests.domain.descriptors import V12
from tests.workers.prefill_engine import PrefillEngine
from tests.workers.waiting import WINDOW, Waiting, make_waiting, make_warming
from workers import rebuild_runner
from workers.pool_process import PoolProcess
from workers.rebuild_prefill import PARTIAL_LEASE_S
from workers.rebuild_runner import run_rebuild

CHUNK, HALF = 64, 64
"""The window has 128 tokens."""


@pytest.fixture
def process(database: str) -> Iterator[PoolProcess]:
    settings = Settings(database_url=SecretStr(database), rebuild_timeout_s=20, rebuild_chunk_tokens=CHUNK)
    process = PoolProcess.open(settings)
    yield process
    process.close()


@pytest.fixture
def waiting(store: Engine, prefiller: PrefillEngine) -> Waiting:
    return make_waiting(store)


@pytest.fixture
def warming(store: Engine, prefiller: PrefillEngine) -> Waiting:
    """No turn waits: a rollout wants it."""
    return make_warming(store)


def asked(prefiller: PrefillEngine) -> list[dict[str, object]]:
    return [p["kv_transfer_params"]["everturn"] for p in prefiller.prefills]


def run_until_second_chunk(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> threading.Thread:
    """The first is on the row, the second is held back."""
    prefiller.go.clear()
    prefiller.held_from = 2
    thread = threading.Thread(target=run_rebuild, args=(process, waiting.rebuild))
    thread.start()
    for _ in range(2):
        assert prefiller.begun.acquire(timeout=10)
    return thread


def end(thread: threading.Thread, prefiller: PrefillEngine) -> None:
    prefiller.go.set()
    thread.join()


def test_each_chunk_is_offered_what_the_one_before_it_published(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    run_rebuild(process, waiting.rebuild)
    assert [len(p["token_ids"]) for p in prefiller.prefills] == [HALF, len(WINDOW)]
    first, second = asked(prefiller)
    assert (first["offer"], second["offer"]) == (waiting.stale, first["publish"])
    assert first["attempt"] != second["attempt"]
    assert prefiller.computed() == [HALF, len(WINDOW) - HALF]
    row = waiting.row()
    assert (row.state, row.artifact, row.partials) == ("done", second["publish"], (first["publish"],))
    assert row.tokens_done == row.tokens_total == len(WINDOW)


def test_the_turn_gets_the_whole_and_its_one_refusal(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    run_rebuild(process, waiting.rebuild)
    assert waiting.event_names()[-2:] == ["kv.refused", "kv.rebuilt"]
    assert waiting.event_names().count("kv.refused") == 1
    rebuilt = waiting.state().turns[waiting.turn].rebuilt
    assert rebuilt is not None
    assert (rebuilt.artifact, rebuilt.tokens) == (waiting.row().artifact, len(WINDOW))
    refusal = waiting.row().refusal
    assert refusal is not None
    assert refusal.artifact == waiting.stale


def test_what_is_published_on_the_way_is_no_artifact_to_plan_with_and_is_kept_for_less_long(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    run_rebuild(process, waiting.rebuild)
    with waiting.database.begin() as conn:
        known = set(conn.execute(text("SELECT artifact_id FROM artifacts")).scalars())
    assert known == {waiting.stale, waiting.row().artifact}
    leases = [kv["lease_s"] for kv in asked(prefiller)]
    assert leases == [PARTIAL_LEASE_S, process.settings.kv_lease_s]


def test_how_far_it_is_shows_while_it_goes_on(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    thread = run_until_second_chunk(process, waiting, prefiller)
    row = waiting.row()
    end(thread, prefiller)
    assert (row.state, row.tokens_done, row.tokens_total) == ("running", HALF, len(WINDOW))


def test_who_takes_it_over_prefills_only_the_rest(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    zombie = run_until_second_chunk(process, waiting, prefiller)
    with waiting.database.begin() as conn:
        conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp() - interval '1 s'"))
    prefiller.held_from = 4
    run_rebuild(process, waiting.rebuild)
    row = waiting.row()
    assert (row.state, row.fence, row.tokens_done) == ("done", 2, len(WINDOW))
    assert [len(p["token_ids"]) for p in prefiller.prefills] == [HALF, len(WINDOW), len(WINDOW)]
    assert asked(prefiller)[2]["offer"] == row.partials[0]
    before = waiting.event_names()
    end(zombie, prefiller)
    assert prefiller.computed() == [HALF, len(WINDOW) - HALF, len(WINDOW) - HALF]
    assert waiting.event_names() == before
    assert (waiting.row().artifact, waiting.event_names().count("kv.rebuilt")) == (row.artifact, 1)


def test_what_the_last_worker_published_is_gone_is_done_again(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    zombie = run_until_second_chunk(process, waiting, prefiller)
    with waiting.database.begin() as conn:
        conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp() - interval '1 s'"))
    prefiller.held_from = 4
    prefiller.evidence.clear()
    run_rebuild(process, waiting.rebuild)
    assert (waiting.row().state, waiting.row().tokens_done) == ("done", len(WINDOW))
    end(zombie, prefiller)


def test_a_cancelled_rebuild_stops_at_the_end_of_its_chunk(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.go.clear()
    thread = threading.Thread(target=run_rebuild, args=(process, waiting.rebuild))
    thread.start()
    assert prefiller.begun.acquire(timeout=10)
    with waiting.database.begin() as conn:
        rebuild_flow.cancel(conn, waiting.rebuild, by="ada")
    end(thread, prefiller)
    assert len(prefiller.prefills) == 1
    assert (waiting.row().state, waiting.row().reason) == ("failed", "cancelled by ada")


def test_one_that_is_tried_again_goes_on_where_it_was(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine
) -> None:
    thread = run_until_second_chunk(process, warming, prefiller)
    with warming.database.begin() as conn:
        assert rebuilds.end_by_hand(conn, warming.rebuild, rebuilds.RebuildState.FAILED, "cancelled by ada")
        assert rebuilds.requeue(conn, warming.rebuild)
    prefiller.held_from = 4
    run_rebuild(process, warming.rebuild)
    end(thread, prefiller)
    assert (warming.row().state, prefiller.computed()[2]) == ("done", len(WINDOW) - HALF)


def test_a_turn_takes_a_running_warm_up_over_and_none_of_it_is_done_again(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine
) -> None:
    thread = run_until_second_chunk(process, warming, prefiller)
    turn, rebuild = warming.ask()
    assert rebuild == warming.rebuild
    row = warming.row()
    assert (row.queue, row.turn, row.rollout, row.tokens_done) == ("interactive", turn, None, HALF)
    end(thread, prefiller)
    assert len(prefiller.prefills) == 2
    rebuilt = warming.state().turns[turn].rebuilt
    assert rebuilt is not None
    assert (rebuilt.artifact, rebuilt.rebuild) == (warming.row().artifact, rebuild)


def test_a_turn_with_more_history_takes_over_what_was_begun_of_it(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine
) -> None:
    thread = run_until_second_chunk(process, warming, prefiller)
    warming.answer_on_the_old_revision()
    turn, rebuild = warming.ask()
    assert rebuild == warming.rebuild
    end(thread, prefiller)
    whole = warming.row().tokens_total
    assert whole > len(WINDOW)
    assert [len(p["token_ids"]) for p in prefiller.prefills] == [HALF, len(WINDOW), whole]
    assert prefiller.computed()[2] == whole - len(WINDOW)
    rebuilt = warming.state().turns[turn].rebuilt
    assert rebuilt is not None
    assert rebuilt.tokens == whole


def test_a_warm_up_gives_way_behind_its_chunk_and_the_turn_is_next(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.go.clear()
    thread = threading.Thread(target=run_rebuild, args=(process, warming.rebuild))
    thread.start()
    assert prefiller.begun.acquire(timeout=10)
    urgent = make_waiting(warming.database)
    end(thread, prefiller)
    row = warming.row()
    assert (row.state, row.tokens_done, row.owner) == ("queued", HALF, None)
    run_rebuild(process, warming.rebuild)
    assert warming.row().state == "queued", "nobody takes it up before"
    run_rebuild(process, urgent.rebuild)
    run_rebuild(process, warming.rebuild)
    assert (urgent.row().state, warming.row().state) == ("done", "done")
    assert prefiller.computed() == [HALF, HALF, HALF, HALF]


def test_one_that_takes_long_is_left_to_others_in_time(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild_runner, "HAND_OVER", 0.0)
    run_rebuild(process, warming.rebuild)
    assert (warming.row().state, warming.row().tokens_done) == ("queued", HALF)
    run_rebuild(process, warming.rebuild)
    assert warming.row().state == "done"


def test_kv_that_comes_too_late_is_known_to_an_erasure(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    thread = run_until_second_chunk(process, waiting, prefiller)
    waiting.erase()
    end(thread, prefiller)
    published = {str(kv["publish"]) for kv in asked(prefiller)}
    with waiting.database.begin() as conn:
        wanted = {deletion.artifact for deletion in kv_deletions.claim(conn, store="any", limit=10)}
    assert published < wanted


def test_an_engine_that_publishes_no_more_of_it_fails_the_rebuild(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.most_published = 16
    run_rebuild(process, waiting.rebuild)
    assert waiting.row().state == "failed"
    assert waiting.row().reason == "no more than 16 tokens of it were published"


def test_a_warm_up_begins_behind_what_there_is_on_its_own_revision(
    process: PoolProcess, store: Engine, prefiller: PrefillEngine
) -> None:
    stored = prefiller.published(ArtifactId("kv_" + "a" * 32), HALF)
    prefiller.stored.append(stored)
    warming = make_warming(store, offered=stored)
    run_rebuild(process, warming.rebuild)
    assert [len(p["token_ids"]) for p in prefiller.prefills] == [len(WINDOW)]
    assert asked(prefiller)[0]["offer"] == stored.artifact
    assert prefiller.computed() == [len(WINDOW) - HALF]
    assert (warming.row().state, warming.row().partials) == ("done", ())


def test_kv_of_another_revision_is_nothing_to_begin_behind(
    process: PoolProcess, store: Engine, prefiller: PrefillEngine
) -> None:
    stored = replace(prefiller.published(ArtifactId("kv_" + "a" * 32), HALF), revision=V12.digest)
    run_rebuild(process, make_warming(store, offered=stored).rebuild)
    assert [len(p["token_ids"]) for p in prefiller.prefills] == [HALF, len(WINDOW)]
