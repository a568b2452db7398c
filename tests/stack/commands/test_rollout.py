"""`everturn rollout` against the running API: started, watched, stopped and taken back; and refused in one line."""

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stack.cli import main
from stack.commands import rollout as commands_rollout
from stack.commands.rollout import STOPPED, line, watch
from tests.api.rolling import advance, start
from tests.api.stack import Stack, running_stack

Rollout = Callable[..., int]


@pytest.fixture
def stack(database: str) -> Iterator[Stack]:
    with running_stack(database) as running:
        running.start_engine("a", alias=True)
        yield running


@pytest.fixture
def rollout(stack: Stack, tmp_path: Path) -> Rollout:
    key = tmp_path / "operator.key"
    key.write_text(stack.secrets.operator)
    return lambda *given: main(["rollout", *given, "--api", stack.url, "--key-file", str(key)])


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_it_is_started_with_every_choice_watched_and_shown(
    stack: Stack, rollout: Rollout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = stack.start_engine("b")
    begun = ["start", "production", new.revision, "--warm", "3", "--tokens-per-s", "500"]
    begun += ["--shift", "50,100", "--hold", "1,0", "--drain", "never", "--max-refusals", "2"]
    begun += ["--max-engine-load", "7", "--max-failed-canaries", "1"]
    assert rollout(*begun, "--reason", "better", "--by", "ada") == 0
    [name] = printed(capsys)
    strategy = stack.admin.get(f"/admin/rollouts/{name}").json()["strategy"]
    assert strategy == {
        "warm": 3,
        "warm_tokens_per_s": 500,
        "shift": [{"percent": 50, "hold_s": 1}, {"percent": 100, "hold_s": 0}],
        "drain": "never",
        "limits": {"refusals": 2, "failed_attempts": 5, "failed_rebuilds": 5, "failed_canaries": 1},
        "max_engine_load": 7,
    }

    def sleep(_: float) -> None:
        time.sleep(0.05)
        advance(stack)

    # Between two looks it goes on by one step, so that each is seen however slow the machine is.
    monkeypatch.setattr(commands_rollout, "time", SimpleNamespace(sleep=sleep))
    assert rollout("watch", name) == 0
    told = printed(capsys)
    assert "done  100%  all conversations moved; engines of before not drained, as asked" in told[-1]
    assert any("shifting  50%" in one for one in told)
    assert rollout("show", name) == 0
    shown = "\n".join(printed(capsys))
    assert f"to   {new.revision}" in shown
    assert "troubles: refusals 0, failed_attempts 0, failed_rebuilds 0, failed_canaries 0" in shown
    assert rollout("ls", "--alias", "production") == 0
    assert printed(capsys)[0].startswith(f"{name}  production  20")


def test_it_is_paused_resumed_aborted_and_taken_back(
    stack: Stack, rollout: Rollout, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = stack.alias_revision(), stack.start_engine("b").revision
    rollout("start", "production", new, "--shift", "50,100", "--hold", "600")
    [name] = printed(capsys)
    advance(stack)
    assert rollout("pause", name, "--reason", "lunch") == 0
    assert "paused  50%" in printed(capsys)[0]
    assert rollout("watch", name) == STOPPED
    assert printed(capsys)[-1].endswith("lunch")
    assert rollout("resume", name) == 0
    assert rollout("back", name, "--reason", "worse") == 0
    leads_back = printed(capsys)[-1].split()[0]
    advance(stack)
    assert rollout("show", leads_back) == 0
    assert f"takes back {name}" in "\n".join(printed(capsys))
    assert rollout("watch", name) == 1, "it was rolled back"
    rollout("start", "production", new)
    another = printed(capsys)[-1]
    assert rollout("abort", another, "--reason", "wrong file") == 0
    assert "aborted" in printed(capsys)[0]
    assert stack.alias_revision() == old


def test_a_refusal_is_one_line(stack: Stack, rollout: Rollout, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout("start", "production", stack.alias_revision()) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "points at" in error
    assert rollout("abort", "ro_0") == 1


FOUND: dict[str, Any] = {
    "from": "rev_" + "12" * 32,
    "to": "rev_" + "13" * 32,
    "state": "warming",
    "percent": 0,
    "reason": "",
    "waiting": "2 conversations are still to be warmed",
    "warm": {"total": 5, "waiting": 1, "running": 1, "tokens_done": 300},
    "age_s": 4.2,
    "eta_s": 7.9,
    "ended_at": None,
}


def test_a_line_says_where_it_stands_how_long_and_what_it_waits_for() -> None:
    assert line(FOUND) == (
        "rev_12121212 → rev_13131313  warming  0%  warmed 3/5, 300 tokens  for 4 s  about 8 s left  "
        "2 conversations are still to be warmed"
    )


@pytest.mark.parametrize(
    ("turns", "said"), [(0, ""), (1, "  1 turn waits for an engine"), (7, "  7 turns wait for an engine")]
)
def test_a_line_says_how_many_turns_wait(turns: int, said: str) -> None:
    assert line(FOUND | {"turns_waiting": turns}) == line(FOUND).replace("  2 conv", f"{said}  2 conv")


def test_a_line_says_what_the_turns_wait_for() -> None:
    waits = {"turns_waiting": 4, "turns_waiting_for": {"worker": 0, "next_attempt": 1, "engine": 3}}
    said = "  1 turn waits for another attempt  3 turns wait for an engine"
    assert line(FOUND | waits) == line(FOUND).replace("  2 conv", f"{said}  2 conv")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def looks(*changes: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    left = iter(changes)
    return lambda: FOUND | next(left)


OLDER = {"age_s": 5.0}
DONE = {"state": "done", "percent": 100, "reason": "moved", "ended_at": "2026-01-01T00:00:00Z"}


def test_a_log_gets_a_line_for_each_change_alone() -> None:
    out = io.StringIO()
    assert watch(looks({}, OLDER, OLDER, DONE), out, lambda _: None) == 0
    assert [one.split("  ")[1] for one in out.getvalue().splitlines()] == ["warming", "done"]


def test_a_log_is_not_filled_by_the_number_of_turns_that_wait() -> None:
    out = io.StringIO()
    waiting = [{"turns_waiting": turns} for turns in (0, 3, 4, 0)]
    watch(looks(*waiting, DONE), out, lambda _: None)
    assert ["for an engine" in one for one in out.getvalue().splitlines()] == [False, True, False, False]
    told = [one | {"turns_waiting_for": {"worker": one["turns_waiting"], "engine": 0}} for one in waiting]
    again = io.StringIO()
    watch(looks(*told, DONE), again, lambda _: None)
    assert ["for a worker" in one for one in again.getvalue().splitlines()] == [False, True, False, False]


def test_a_terminal_is_drawn_anew_and_keeps_a_line_for_each_state() -> None:
    out = Terminal()
    assert watch(looks({}, OLDER, DONE), out, lambda _: None) == 0
    assert out.getvalue().count("\r") == 3
    assert out.getvalue().count("\n") == 2


def test_a_terminal_is_never_written_past_its_edge() -> None:
    out = Terminal()
    watch(looks({}, DONE), out, lambda _: None, 40)
    drawn = [one.rpartition("\x1b[K")[2] for one in out.getvalue().splitlines()]
    assert [len(one) for one in drawn if one] == [39, 39]


def test_a_watch_ends_where_somebody_has_to_decide() -> None:
    assert watch(looks({}, {"state": "paused"}), io.StringIO(), lambda _: None) == STOPPED
    aborted = DONE | {"state": "aborted"}
    assert watch(looks({}, aborted), io.StringIO(), lambda _: None) == 1


def test_the_rebuilds_of_a_rollout_are_listed_cancelled_and_tried_again(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = stack.conversation()
    stack.ask("one", conversation=chat)
    stack.bell.unheard = True
    rollout = start(stack, stack.start_engine("b").revision, warm=1)
    for _ in range(2):
        advance(stack)
    key = tmp_path / "operator.key"
    key.write_text(stack.secrets.operator)

    def rebuilds(*given: str) -> list[str]:
        assert main(["rebuilds", *given, "--api", stack.url, "--key-file", str(key)]) == 0
        return printed(capsys)

    [one] = rebuilds("ls", "--state", "queued", "--rollout", rollout)
    name, queue, state, *_ = one.split("  ")
    assert (queue, state, one.split("  ")[-1]) == ("background", "queued", f"for {rollout}")
    assert rebuilds("ls", "--state", "done") == []
    assert f"conversation: {chat}" in rebuilds("show", name)
    assert "superseded" in rebuilds("cancel", name, "--by", "ada")[0]
    assert rebuilds("ls", "--rollout", rollout)[0].endswith("cancelled by ada")
    assert "queued" in rebuilds("retry", name)[0]
