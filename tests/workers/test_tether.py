import os
import subprocess
import sys

import pytest

from workers.child import TETHER


def tethered(
    *argv: str, parent: int, account: tuple[str, str] = ("-", "-"), groups: list[int] | None = None
) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(TETHER), str(parent), "15", *account, *argv],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
        extra_groups=groups,
    )
    return f"{done.returncode} {done.stdout}"


def test_a_child_whose_parent_is_gone_already_never_begins() -> None:
    said = tethered("/bin/echo", "began", parent=os.getpid() + 1)
    assert said == "126 FATAL: the parent ended before its child began\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to drop")
def test_no_group_of_root_is_kept() -> None:
    said = tethered("/usr/bin/id", "-G", parent=os.getpid(), account=("12345", "12346"), groups=[0, 4])
    assert said == "0 12346\n"
