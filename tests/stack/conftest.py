"""Supervisors in processes of their own, and data directories that cost no initdb."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.placement import Placement, place
from stack.postgres import EmbeddedPostgres
from tests.stack.supervisors import REPOSITORY, SITE_PACKAGES, Serve, Served

SERVE = Path(__file__).with_name("serve.py")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that a server account other than root can enter."""
    path = Path(tempfile.mkdtemp(prefix="everturn-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def pristine_cluster(server_folder: Path) -> Path:
    directory = server_folder / "pristine"
    with EmbeddedPostgres(directory, durable=False):
        pass
    return directory


@pytest.fixture
def cluster_directory(pristine_cluster: Path, folder: Path) -> Path:
    """A stopped server's data directory that this test may spoil."""
    subprocess.run(["cp", "-a", str(pristine_cluster), str(folder / "pg")], check=True)
    return folder / "pg"


@pytest.fixture
def placement(folder: Path) -> Placement:
    return place(folder / "server")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server in a supervisor of its own, as this user or another; ended after the test if it still lives."""
    started: list[subprocess.Popen[bytes]] = []

    def start(kind: str, directory: Path, *, uid: int | None = None, python: str = sys.executable) -> Served:
        supervisor = subprocess.Popen(
            [python, str(SERVE), kind, str(directory)],
            env={"PYTHONPATH": f"{REPOSITORY}:{SITE_PACKAGES}", "PATH": os.defpath},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
        )
        started.append(supervisor)
        assert supervisor.stdout is not None
        line = supervisor.stdout.readline()
        assert line, "the supervisor failed; its error is in the captured stderr"
        return Served(supervisor=supervisor, **json.loads(line))

    yield start
    for supervisor in started:
        supervisor.communicate(timeout=30)


@pytest.fixture
def ordinary_user() -> tuple[int, str]:
    """A uid other than root, and a Python of this version that it can run; only root can become somebody else."""
    if os.geteuid() != 0:
        pytest.skip("already runs as an ordinary user")
    uid = pwd.getpwnam("nobody").pw_uid
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    probe = f"import sys, psycopg, stack.process; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
    for python in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        try:
            done = subprocess.run(
                [python, "-c", probe],
                check=False,
                env={"PYTHONPATH": f"{REPOSITORY}:{SITE_PACKAGES}"},
                cwd="/",
                user=uid,
                group=uid,
                extra_groups=[],
                capture_output=True,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return uid, python
    pytest.skip("no Python that an ordinary user can run, or the checkout is private to root")
