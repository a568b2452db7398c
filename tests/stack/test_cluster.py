"""A cluster that cannot be made here, told before PostgreSQL tells it in its own words."""

import os
from pathlib import Path

import pytest

from stack import cluster
from stack.errors import StackError
from tests.stack.supervisors import refused_as

NAMELESS = 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_account_without_a_name_is_told_what_it_lacks(
    folder: Path, ordinary_user: tuple[int, str]
) -> None:
    os.chown(folder, NAMELESS, NAMELESS)
    said = refused_as(NAMELESS, ordinary_user[1], folder / "pg")
    assert f"uid {NAMELESS} has no name on this machine" in said
    assert f"echo 'everturn:x:{NAMELESS}:{NAMELESS}::/tmp:/bin/sh' >>/etc/passwd" in said


def test_a_file_system_that_keeps_no_permissions_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(StackError, match=r"keeps no permissions .* has mode 777"):
        cluster._require_modes(tmp_path)
