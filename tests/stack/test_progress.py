import io
import time

import pytest

from stack.progress import CLEAR_LINE, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, *, takes_s: float, quiet_s: float = 0.05) -> str:
    progress = Progress(stream=stream, quiet_s=quiet_s, terminal_repeat_s=0.05, log_repeat_s=0.1)
    with progress.step("Starting PostgreSQL"):
        time.sleep(takes_s)
    return stream.getvalue()


def test_a_quick_step_prints_nothing() -> None:
    assert run(io.StringIO(), takes_s=0, quiet_s=60) == ""


def test_a_slow_step_in_a_log_prints_whole_lines_and_how_it_ended() -> None:
    lines = run(io.StringIO(), takes_s=0.3).splitlines()
    assert len(lines) >= 3
    assert lines[0] == "Starting PostgreSQL ... 0 s"
    assert lines[-1] == "Starting PostgreSQL ... done in 0 s"
    assert "\r" not in "".join(lines)


def test_a_slow_step_on_a_terminal_rewrites_one_line() -> None:
    said = run(Terminal(), takes_s=0.3)
    assert said.count("\n") == 1
    assert said.count(CLEAR_LINE) >= 3
    assert said.endswith("Starting PostgreSQL ... done in 0 s\n")


def test_a_step_that_fails_is_not_called_done() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="no"), Progress(stream=stream, quiet_s=0.0).step("Loading"):
        raise ValueError("no")
    assert stream.getvalue().splitlines()[-1] == "Loading ... failed after 0 s"


def test_elapsed_seconds_come_from_the_clock() -> None:
    stream = io.StringIO()
    times = iter([0.0, 12.0])
    with Progress(stream=stream, quiet_s=5.0, clock=lambda: next(times)).step("Loading"):
        pass
    assert stream.getvalue() == "Loading ... done in 12 s\n"
