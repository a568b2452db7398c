"""One rebuild: done once, by the right revision, and ended with a result or a reason whatever happens."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from pydantic import SecretStr
from sqlalchemy import Engine, event, text

from service import rebuild_run_flow
from service.domain.artifact import BootId, RefusalReason
from service.domain.errors import Internal
from service.domain.plan import EngineState
from service.settings import Settings
from service.store import fleet, heads, rebuilds
from tests.domain.descriptors import V12, V13
from tests.flows.orphans import fail_as_orphan
from tests.workers.prefill_engine import PrefillEngine, serving
from tests.workers.waiting import ACME, WINDOW, Waiting, make_waiting, make_warming, register
from workers import rebuild_runner
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild


@pytest.fixture
def process(database: str) -> Iterator[PoolProcess]:
    process = PoolProcess.open(Settings(database_url=SecretStr(database), rebuild_timeout_s=20))
    yield process
    process.close()


@pytest.fixture
def waiting(store: Engine, prefiller: PrefillEngine) -> Waiting:
    return make_waiting(store)


@pytest.fixture
def warming(store: Engine, prefiller: PrefillEngine) -> Waiting:
    """No turn waits: a rollout wants it."""
    return make_warming(store)


def failed(waiting: Waiting) -> str:
    row = waiting.row()
    assert (row.state, row.artifact) == ("failed", None)
    assert waiting.event_names()[-1] == "turn.pinned", "nothing was added to the conversation"
    return row.reason or ""


def expire_lease(waiting: Waiting) -> None:
    with waiting.database.begin() as conn:
        conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp() - interval '1 s'"))


def test_the_accepted_window_is_prefilled_and_published(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    run_rebuild(process, waiting.rebuild)
    (prefill,) = prefiller.prefills
    assert tuple(prefill["token_ids"]) == WINDOW
    assert prefill["sampling_params"]["max_tokens"] == 1
    asked = prefill["kv_transfer_params"]["everturn"]
    assert asked["attempt"] == f"{waiting.rebuild}.1"
    row = waiting.row()
    assert (row.state, row.artifact, row.engine_boot) == ("done", asked["publish"], "boot_a")
    rebuilt = waiting.state().turns[waiting.turn].rebuilt
    assert rebuilt is not None
    assert (rebuilt.artifact, rebuilt.revision, rebuilt.producer) == (row.artifact, V13.digest, "boot_a")


def test_the_stale_kv_is_offered_and_its_refusal_recorded(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    run_rebuild(process, waiting.rebuild)
    assert prefiller.prefills[0]["kv_transfer_params"]["everturn"]["offer"] == waiting.stale
    assert waiting.event_names()[-2:] == ["kv.refused", "kv.rebuilt"]
    refusal = waiting.row().refusal
    assert refusal is not None
    assert (refusal.artifact, refusal.reason) == (waiting.stale, RefusalReason.REVISION_MISMATCH)


def test_an_offer_that_fails_to_load_is_left_out_of_a_second_try(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.fails_to_load = True
    run_rebuild(process, waiting.rebuild)
    asked = [p["kv_transfer_params"]["everturn"] for p in prefiller.prefills]
    assert [a["offer"] for a in asked] == [waiting.stale, None]
    assert asked[0]["attempt"] != asked[1]["attempt"]
    assert waiting.row().state == "done"
    (refused,) = waiting.state().turns[waiting.turn].refusals
    assert refused.refusal.reason == RefusalReason.CHECKSUM_MISMATCH


def test_five_deliveries_at_once_prefill_once(
    database: str, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.go.clear()
    process = PoolProcess.open(Settings(database_url=SecretStr(database), pool_size=6))
    with ThreadPoolExecutor(5) as pool:
        runs = [pool.submit(run_rebuild, process, waiting.rebuild) for _ in range(5)]
        prefiller.begun.acquire(timeout=10)
        deadline = time.monotonic() + 10
        while sum(r.done() for r in runs) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sum(r.done() for r in runs) == 4, "the others return while the first still runs"
        prefiller.go.set()
        for run in runs:
            run.result()
    process.close()
    assert len(prefiller.prefills) == 1
    assert waiting.event_names().count("kv.rebuilt") == 1


def test_a_delivery_after_the_end_does_nothing(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    run_rebuild(process, waiting.rebuild)
    before = waiting.row(), waiting.event_names()
    run_rebuild(process, waiting.rebuild)
    assert (waiting.row(), waiting.event_names()) == before
    assert len(prefiller.prefills) == 1


def test_an_unknown_id_does_nothing(process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine) -> None:
    run_rebuild(process, "rb_unknown")
    assert prefiller.prefills == []


def test_an_engine_that_is_another_revision_is_left_for_one_that_is_not(
    process: PoolProcess, store: Engine, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    with serving(PrefillEngine(boot=BootId("boot_idle"), measured=V12.digest)) as idle:
        register(store, idle)
        run_rebuild(process, waiting.rebuild)
    assert len(idle.prefills) == len(prefiller.prefills) == 1
    assert waiting.row().engine_boot == prefiller.boot


def test_an_engine_that_is_another_revision_fails_the_rebuild(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.measured = V12.digest
    run_rebuild(process, waiting.rebuild)
    assert "differing fields: weights" in failed(waiting)


def test_kv_published_under_another_revision_is_not_taken(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PrefillEngine.seen

    def lie(engine: PrefillEngine, kv: dict[str, object], tokens: int) -> object:
        engine.measured = V12.digest
        return honest(engine, kv, tokens)

    monkeypatch.setattr(PrefillEngine, "seen", lie)
    run_rebuild(process, waiting.rebuild)
    assert V12.digest in failed(waiting)


def test_an_engine_that_publishes_nothing_fails_the_rebuild(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.fails_to_publish = True
    run_rebuild(process, waiting.rebuild)
    assert "no space left" in failed(waiting)


def test_a_broken_engine_fails_the_rebuild_with_its_words(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.broken = True
    run_rebuild(process, waiting.rebuild)
    assert "CUDA error" in failed(waiting)


def test_an_engine_that_is_gone_fails_the_rebuild(
    process: PoolProcess, store: Engine, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    with store.begin() as conn:
        conn.execute(text("UPDATE engines SET address = 'http://127.0.0.1:9'"))
    run_rebuild(process, waiting.rebuild)
    assert "cannot be reached" in failed(waiting)


def test_no_engine_of_the_revision_fails_the_rebuild(
    process: PoolProcess, store: Engine, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    with store.begin() as conn:
        fleet.set_engine_state(conn, boot=prefiller.boot, state=EngineState.DRAINING)
    run_rebuild(process, waiting.rebuild)
    assert failed(waiting) == f"no ready engine for prefill serves {V13.digest}"


def test_a_worker_that_lost_its_fence_changes_nothing(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.go.clear()
    zombie = threading.Thread(target=run_rebuild, args=(process, waiting.rebuild))
    zombie.start()
    prefiller.begun.acquire(timeout=10)
    expire_lease(waiting)
    with waiting.database.begin() as conn:
        claim = rebuilds.claim(conn, rebuild=waiting.rebuild, owner="another", lease_s=60)
    assert claim is not None
    before = waiting.row(), waiting.event_names()
    prefiller.go.set()
    zombie.join()
    row = waiting.row()
    assert (replace(row, partials=()), waiting.event_names()) == before
    assert row.partials == (prefiller.prefills[0]["kv_transfer_params"]["everturn"]["publish"],), (
        "it is there"
    )


def test_a_rebuild_whose_turn_has_ended_changes_nothing(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    prefiller.go.clear()
    late = threading.Thread(target=run_rebuild, args=(process, waiting.rebuild))
    late.start()
    prefiller.begun.acquire(timeout=10)
    with waiting.database.begin() as conn:
        fail_as_orphan(conn, ACME, waiting.conversation, waiting.turn, waiting.row().created_at)
    before = waiting.event_names()
    prefiller.go.set()
    late.join()
    assert (waiting.row().state, waiting.event_names()) == ("superseded", before)


def test_the_lease_is_renewed_while_the_engine_works(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuild_runner, "LEASE_S", 0.6)
    prefiller.go.clear()
    worker = threading.Thread(target=run_rebuild, args=(process, waiting.rebuild))
    worker.start()
    prefiller.begun.acquire(timeout=10)
    time.sleep(1.5)
    with waiting.database.begin() as conn:
        assert rebuilds.claim(conn, rebuild=waiting.rebuild, owner="another", lease_s=60) is None
    prefiller.go.set()
    worker.join()
    assert waiting.row().state == "done"


def test_a_rebuild_that_ends_every_worker_is_given_up(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    with waiting.database.begin() as conn:
        conn.execute(text("UPDATE rebuilds SET claims = :n"), {"n": rebuild_runner.MOST_CLAIMS})
    run_rebuild(process, waiting.rebuild)
    assert "given up" in failed(waiting)
    assert prefiller.prefills == []


def test_celerys_soft_time_limit_ends_the_row_with_a_reason(
    process: PoolProcess, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(*_: object) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(rebuild_runner, "prefill_chunk", too_long)
    run_rebuild(process, waiting.rebuild)
    assert failed(waiting) == f"it took longer than {process.settings.rebuild_timeout_s:.0f} s"


def test_a_bug_of_ours_ends_the_row_and_is_raised(
    process: PoolProcess, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rebuild_runner, "prefill_chunk", broken)
    with pytest.raises(ZeroDivisionError):
        run_rebuild(process, waiting.rebuild)
    assert "ZeroDivisionError" in failed(waiting)


def test_an_engine_is_asked_after_a_single_transaction(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    begun: list[int] = []
    event.listen(process.database, "begin", lambda _: begun.append(len(prefiller.prefills)))
    run_rebuild(process, waiting.rebuild)
    assert begun.count(0) == 1


@pytest.mark.parametrize("error", [Internal("of 130 tokens 128 are stored"), ZeroDivisionError("by none")])
def test_one_whose_history_cannot_be_read_is_given_up_and_says_why(
    process: PoolProcess,
    waiting: Waiting,
    prefiller: PrefillEngine,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    def unreadable(*_: object) -> None:
        raise error

    monkeypatch.setattr(heads, "load_window", unreadable)
    with nullcontext() if isinstance(error, Internal) else pytest.raises(ZeroDivisionError):
        run_rebuild(process, waiting.rebuild)
    assert str(error) in failed(waiting)
    assert (waiting.row().fence, prefiller.prefills) == (1, [])


def test_a_history_of_which_nothing_is_left_is_not_prefilled(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "load_window", lambda *_: ())
    run_rebuild(process, waiting.rebuild)
    assert failed(waiting) == "nothing of the history is left to be prefilled as it was"
    assert prefiller.prefills == []


def test_a_warm_up_whose_history_was_erased_meanwhile_is_superseded_and_troubles_no_rollout(
    process: PoolProcess, warming: Waiting, prefiller: PrefillEngine
) -> None:
    warming.erase()
    run_rebuild(process, warming.rebuild)
    row = warming.row()
    assert (row.state, row.reason) == (
        "superseded",
        "nothing of the history is left to be prefilled as it was",
    )
    assert row.finished_at is not None
    assert prefiller.prefills == []


def test_one_that_cannot_be_begun_is_not_failed_for_whoever_works_on_it(
    process: PoolProcess, waiting: Waiting, prefiller: PrefillEngine
) -> None:
    with waiting.database.begin() as conn:
        assert rebuilds.claim(conn, rebuild=waiting.rebuild, owner="another", lease_s=60)
        rebuild_run_flow.give_up(
            conn, rebuild=waiting.rebuild, owner="worker", lease_s=60, reason="no engine"
        )
    assert (waiting.row().state, waiting.row().owner) == ("running", "another")
