"""A cluster that cannot be made here, told before PostgreSQL tells it in its own words."""

import os
import subprocess
from pathlib import Path

import pytest

from stack import cluster
from stack.errors import StackError
from tests.stack.supervisors import REPOSITORY, SITE_PACKAGES

NAMELESS = 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_account_without_a_name_is_told_what_it_lacks(
    folder: Path, ordinary_user: tuple[int, str]
) -> None:
    os.chown(folder, NAMELESS, NAMELESS)
    done = subprocess.run(
        [ordinary_user[1], "-m", "tests.stack.serve", "postgres", str(folder / "pg")],
        check=False,
        cwd=REPOSITORY,
        user=NAMELESS,
        group=NAMELESS,
        extra_groups=[],
        env={"PYTHONPATH": str(SITE_PACKAGES)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"uid {NAMELESS} has no name on this machine" in done.stderr
    assert f"echo 'everturn:x:{NAMELESS}:{NAMELESS}::/tmp:/bin/sh' >>/etc/passwd" in done.stderr


def test_a_file_system_that_keeps_no_permissions_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StackError, match=r"keeps no permissions .* has mode 777"):
        cluster._require_modes(tmp_path)
