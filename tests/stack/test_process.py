import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from signal import Signals

import pytest

from stack.errors import StackError
from stack.process import Child
from tests.stack.supervisors import REPOSITORY, processes_within, wait_until_none_within
from workers.child import LARGEST_LOG_BYTES, Program, none_left

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    children: list[Child] = []

    def start_python(
        code: str, *, stop: Sequence[tuple[Signals, float]] = ((Signals.SIGTERM, 5.0),), stdin: bytes = b""
    ) -> Child:
        child = Child.start(
            Program(
                name="sleeper",
                argv=[sys.executable, "-u", "-c", code],
                env={"KNOWN": "yes"},
                cwd=tmp_path,
                log=tmp_path / "sleeper.log",
                stop=stop,
                stdin=stdin,
            )
        )
        children.append(child)
        return child

    yield start_python
    for child in children:
        child.stop()


def says(child: Child, text: str) -> Callable[[], bool]:
    return lambda: text in child.log_tail()


def test_ready_is_waited_for_and_output_goes_to_the_log(start: Start) -> None:
    child = start("import time; print('up'); time.sleep(60)")
    child.wait_ready(says(child, "up"), timeout_s=10)
    assert child.exit_status() is None


def test_the_environment_is_exactly_what_was_given(start: Start) -> None:
    child = start("import os; print('HOME' in os.environ, os.environ['KNOWN'])")
    child.wait_end(timeout_s=10)
    assert child.log_tail() == "False yes\n"


def test_standard_input_is_what_was_given_and_then_ends(start: Start) -> None:
    child = start("import sys; print(len(sys.stdin.read()))", stdin=b"x" * 1000)
    child.wait_end(timeout_s=10)
    assert child.log_tail() == "1000\n"


def test_a_child_that_dies_while_starting_is_reported_at_once_with_its_last_words(start: Start) -> None:
    child = start("import sys; print('loading'); sys.exit('Error: no model at /nowhere')")
    began = time.monotonic()
    with pytest.raises(
        StackError,
        match=r"^sleeper ended while starting \(exit 1\): Error: no model at /nowhere \(log: .*sleeper.log\)$",
    ):
        child.wait_ready(lambda: False, timeout_s=60)
    assert time.monotonic() - began < 10


def test_a_child_that_a_signal_ended_is_reported_with_the_signals_name(start: Start) -> None:
    child = start("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(StackError, match=r"\(killed by SIGKILL\): it wrote nothing"):
        child.wait_ready(lambda: False, timeout_s=60)


def test_a_child_that_is_never_ready_is_reported_after_the_limit(start: Start) -> None:
    child = start("import time; time.sleep(60)")
    with pytest.raises(StackError, match=r"sleeper was not ready after 0 s"):
        child.wait_ready(lambda: False, timeout_s=0.2)


def test_only_this_runs_output_is_quoted(start: Start) -> None:
    start("print('Error: of yesterday')").wait_end(timeout_s=10)
    child = start("print('fine today')")
    child.wait_end(timeout_s=10)
    assert child.log_tail() == "fine today\n"


def test_a_program_that_does_not_exist_is_reported_by_name(tmp_path: Path) -> None:
    child = Child.start(
        Program(name="engine", argv=["/no/such/program"], env={}, cwd=tmp_path, log=tmp_path / "engine.log")
    )
    try:
        with pytest.raises(StackError, match="cannot run /no/such/program: No such file or directory"):
            child.wait_ready(lambda: False, timeout_s=10)
    finally:
        child.stop()


def test_stop_lets_a_child_end_in_its_own_way(start: Start) -> None:
    child = start(
        "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('up')\ntime.sleep(60)"
    )
    child.wait_ready(says(child, "up"), timeout_s=10)
    assert child.stop() == 7


def test_stop_kills_a_child_that_ignores_it(start: Start) -> None:
    child = start(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up')\ntime.sleep(60)",
        stop=((Signals.SIGTERM, 0.2),),
    )
    child.wait_ready(says(child, "up"), timeout_s=10)
    assert child.stop() == -signal.SIGKILL


def wait_until(true: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("leader_ends", ["time.sleep(60)", "sys.exit(1)"])
def test_stop_leaves_no_grandchild(start: Start, tmp_path: Path, leader_ends: str) -> None:
    child = start(
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)'])\n"
        f"print('up')\n{leader_ends}"
    )
    # Not wait_ready: that of a leader which ends at once may see its end before its word.
    wait_until(says(child, "up"))
    assert processes_within(tmp_path)
    child.stop()
    wait_until_none_within(tmp_path, limit_s=2)


def test_stop_may_be_called_twice(start: Start) -> None:
    child = start("pass")
    assert child.stop() == child.stop()
    assert child.exit_status() is not None


def test_a_terminals_interrupt_does_not_reach_the_child(start: Start) -> None:
    child = start("import time; print('up'); time.sleep(60)")
    child.wait_ready(says(child, "up"), timeout_s=10)
    assert os.getsid(child.pid) == child.pid != os.getsid(0)


def test_a_thread_may_not_start_children_that_would_die_with_it(start: Start) -> None:
    errors: list[RuntimeError] = []

    def attempt() -> None:
        try:
            start("pass")
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    parent_code = f"""
import sys, time
from pathlib import Path
from stack.process import Child
from workers.child import Program
folder = Path({str(tmp_path)!r})
child = Child.start(Program(name="sleeper", argv=[sys.executable, "-u", "-c", "import time; print('up'); time.sleep(60)"],
                            env={{}}, cwd=folder, log=folder / "sleeper.log"))
child.wait_ready(lambda: "up" in child.log_tail(), timeout_s=10)
print(child.pid, flush=True)
time.sleep(60)
"""
    environment = {"PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], env=environment, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert processes_within(tmp_path) == [pid]
        parent.kill()
    wait_until_none_within(tmp_path, limit_s=2)


def test_a_signal_that_comes_while_a_child_is_started_leaves_none_behind(tmp_path: Path) -> None:
    told_at_once = f"""
import os, signal, subprocess, sys
from pathlib import Path
from stack.process import Child
from workers.child import Program, none_left
class Told(Exception): pass
def tell(*_): raise Told
signal.signal(signal.SIGTERM, tell)
class Popen(subprocess.Popen):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        os.kill(os.getpid(), signal.SIGTERM)
        sum(1 for _ in range(1000))
subprocess.Popen = Popen
folder = Path({str(tmp_path)!r})
deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
try:
    with none_left():
        Child.start(Program(name="deaf", argv=[sys.executable, "-c", deaf], env={{}}, cwd=folder, log=folder / "deaf.log",
                            stop=((signal.SIGTERM, 1.0),)))
except Told:
    print("told", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", told_at_once],
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout == "told\n"
    assert processes_within(tmp_path) == []


def test_none_is_left_of_those_that_were_started_within_and_no_other_is_stopped(start: Start) -> None:
    before = start("import time; time.sleep(60)")
    with none_left():
        within = start("import time; time.sleep(60)")
        assert not within.ended()
    assert within.ended()
    assert not before.ended()


def test_a_child_gets_the_signals_that_were_held_back_at_its_start(start: Start) -> None:
    child = start("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))")
    child.wait_end(timeout_s=10)
    assert child.log_tail() == "set()\n"


def test_a_large_log_is_set_aside_and_private(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "sleeper.log"
    with log.open("wb") as file:
        file.truncate(LARGEST_LOG_BYTES + 1)
    start("print('new')").wait_end(timeout_s=10)
    assert log.read_text() == "new\n"
    assert log.stat().st_mode & 0o077 == 0
    assert (tmp_path / "sleeper.log.1").stat().st_size == LARGEST_LOG_BYTES + 1


def test_a_failure_ends_with_the_way_out(start: Start) -> None:
    child = start("pass")
    with pytest.raises(StackError, match=r"it wrote nothing \(log: .*\); move it away$"):
        child.wait_ready(lambda: False, timeout_s=60, way_out="move it away")


def test_a_child_that_is_not_done_in_time_is_reported(start: Start) -> None:
    child = start("import time; time.sleep(60)")
    with pytest.raises(StackError, match="sleeper was not done after 0 s"):
        child.wait_end(timeout_s=0.1)
