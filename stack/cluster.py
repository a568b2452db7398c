"""A PostgreSQL data directory on disk: made whole or not at all, and checked before a server touches it."""

import os
import pwd
import shutil
import stat
from pathlib import Path

from stack.embedded import BARE_ENV
from stack.errors import StackError
from stack.passwords import make_password, password_file, read_password
from stack.placement import Placement
from stack.privileges import give
from stack.process import Child
from workers.child import Program

MAJOR = 18
SUPERUSER = "postgres"
INITDB_TIMEOUT_S = 120.0


def prepare(placement: Placement, programs: Path, *, log: Path, durable: bool) -> str:
    """Returns the superuser's password. Only to be called with both locks held.

    Raises:
        StackError: initdb failed, or the directory is no cluster of this major version or has lost its password.
    """
    if not placement.data.exists():
        _init(placement, programs, log=log, durable=durable)
    _check_version(placement.data)
    _drop_stale_pid_file(placement.data)
    return read_password(placement)


def _init(placement: Placement, programs: Path, *, log: Path, durable: bool) -> None:
    fresh = placement.home / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        _require_a_name(placement)
        make_password(placement)
        fresh.mkdir(mode=0o700)
        _require_modes(fresh)
        give(fresh, placement.account)
        _run_initdb(placement, programs, fresh, log=log, durable=durable)
        fresh.rename(placement.data)
    except OSError as error:
        raise StackError(f"cannot make {placement.data}: {error.strerror}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _require_a_name(placement: Placement) -> None:
    """Initdb looks itself up, and says no more than that it is not there."""
    uid = os.geteuid() if placement.account is None else placement.account.uid
    try:
        pwd.getpwuid(uid)
    except KeyError as error:
        raise StackError(
            f"uid {uid} has no name on this machine, and PostgreSQL's initdb needs one: add a line to /etc/passwd "
            f"(`echo 'everturn:x:{uid}:{os.getegid()}::/tmp:/bin/sh' >>/etc/passwd`, as root), or start the stack as an account "
            "that is there"
        ) from error


def _require_modes(folder: Path) -> None:
    """PostgreSQL refuses data that others could read."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & ~stat.S_IRWXU:
        raise StackError(
            f"the file system of {folder.parent} keeps no permissions (a folder made for its owner alone has mode {mode:o}): "
            "choose a data directory, or a place for the checkout, on a Linux file system"
        )


def _run_initdb(placement: Placement, programs: Path, data: Path, *, log: Path, durable: bool) -> None:
    argv = [
        *(
            str(programs / "bin/initdb"),
            f"--pgdata={data}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file(placement)}",
        ),
        *("--auth-local=scram-sha-256", "--auth-host=scram-sha-256", "--encoding=UTF8"),
        *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-instructions"),
        *([] if durable else ["--no-sync"]),
    ]
    initdb = Child.start(
        Program(
            name="initdb", argv=argv, env=BARE_ENV, cwd=placement.home, log=log, account=placement.account
        )
    )
    try:
        initdb.wait_end(timeout_s=INITDB_TIMEOUT_S)
    finally:
        status = initdb.stop()
    said = initdb.log_tail()
    if "No space left on device" in said:
        raise StackError(f"no disk space for a new database in {placement.home}: it needs about 60 MB")
    if status != 0:
        raise StackError(f"initdb failed in {placement.home}: {initdb.last_words()}")


def _check_version(data: Path) -> None:
    try:
        major = (data / "PG_VERSION").read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StackError(
            f"{data} is not a PostgreSQL data directory (no readable PG_VERSION): move it away"
        ) from error
    if major != str(MAJOR):
        raise StackError(
            f"{data} was made by PostgreSQL {major[:20]}, this is {MAJOR}: dump it with {major[:20]} and restore it here, "
            "or choose another data directory"
        )


def _drop_stale_pid_file(data: Path) -> None:
    """PostgreSQL refuses to start over an empty pid file, or one whose number is in use again by another program."""
    path = data / "postmaster.pid"
    try:
        first = path.read_bytes().split(b"\n", 1)[0]
    except FileNotFoundError:
        return
    if first.strip().isdigit() and _is_server_of(int(first), data):
        raise StackError(
            f"a PostgreSQL that this stack did not start runs on {data} (pid {int(first)}): stop it first"
        )
    path.unlink()


def _is_server_of(pid: int, data: Path) -> bool:
    process = Path("/proc") / str(pid)
    try:
        # The server's working directory is its data directory.
        return (process / "cwd").resolve(strict=True) == data.resolve()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # Data belong to the account that serves them, so a process we may not look at is not theirs.
        return False
