import os
import subprocess
import sys

from tests.stack.supervisors import REPOSITORY


def test_only_processors_that_we_may_use_are_named() -> None:
    last = max(os.sched_getaffinity(0))
    told = f"import os; os.sched_setaffinity(0, [{last}]); from stack.cores import all_usable; print(all_usable())"
    done = subprocess.run([sys.executable, "-c", told], cwd=REPOSITORY, check=True, capture_output=True)
    assert done.stdout.decode() == f"{last}\n"
