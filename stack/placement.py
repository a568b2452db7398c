"""Where a server's data, programs and socket live, so that the account it runs under can reach them.

As an ordinary user, and as root where the account can enter the directory, everything stays in the directory. Where
it cannot (a checkout under /root, mode 0700), opening up the parents would expose all else in them, so the data move to
a folder of their own under ``SHELTER``: it outlives a reboot, unlike /tmp. ``<directory>/data`` is then a link to them:
it survives a move of the checkout, and `remove` follows it.
"""

import hashlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stack.errors import StackError
from stack.locks import lock_server, lock_supervisor
from stack.privileges import can_enter, can_run, give, server_account
from workers.child import Account

SHELTER = Path("/var/lib/everturn")
# sun_path holds 108 bytes with its closing NUL.
LONGEST_SOCKET_PATH = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    home: Path  # ours: locks, password, copied programs
    account: Account | None  # None: the server runs as we do

    @property
    def data(self) -> Path:
        return self.home / "data"


def place(directory: Path, *, shelter: Path = SHELTER) -> Placement:
    """Makes the directory and whatever stands in for it; the data themselves are for the caller to make."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        account = server_account(directory / "data")
        if account is not None and not any(directory.iterdir()):
            directory.chmod(0o711)  # the account passes through; it cannot list
        home = _home(directory.resolve(), account, shelter)
    except OSError as error:
        raise StackError(
            f"cannot use {error.filename or directory} as a data directory: {error.strerror}; choose another one"
        ) from error
    return Placement(home=home, account=account)


def runnable(package: Path, program: str, libraries: Path | None, placement: Placement) -> Path:
    """The package's folder, or a copy of it that the account can run. ``program`` and the result are relative to it."""
    account = placement.account
    if account is None or can_run(package / program, account):
        return package
    stem = f"{package.name}-{_fingerprint(package / program)}"
    programs = placement.home / "programs"
    programs.mkdir(exist_ok=True)
    programs.chmod(0o711)  # whatever the umask leaves
    copy = programs / stem
    if not copy.exists():
        fresh = copy.with_name(f"{stem}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        for folder in filter(None, (package, libraries)):
            skip = shutil.ignore_patterns("include", "*.a", "pgxs", "__pycache__")
            shutil.copytree(folder, fresh / folder.name, ignore=skip)
        _open_to_all(fresh)
        fresh.rename(copy)
    if not can_run(copy / package.name / program, account):
        raise StackError(
            f"{copy / package.name / program} does not run as uid {account.uid}; is {placement.home} mounted noexec? "
            "Choose a data directory where programs may run"
        )
    return copy / package.name


def socket_folder(placement: Placement, longest_name: str) -> Path:
    """A folder only the server and root can enter, where a socket of that name can be."""
    for folder in _socket_folders(placement.home):
        # libpq would take a comma for the end of the name.
        if len(os.fsencode(folder / longest_name)) > LONGEST_SOCKET_PATH or "," in str(folder):
            continue
        _make_private(folder, placement.account)
        if _holds_sockets(folder):
            give(folder, placement.account)
            return folder
    raise StackError(
        f"no socket can be made in {placement.home} or {tempfile.gettempdir()}: their file systems have none, or the paths "
        f"are too long (over {LONGEST_SOCKET_PATH} bytes); set TMPDIR to a folder such as /tmp"
    )


def require_links(folder: Path) -> None:
    """Stored KV and checkpoints of the record are published by hard links: whole, and never over another."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        link = Path(f"{file.name}.link")
        try:
            os.link(file.name, link)
        except OSError as error:
            raise StackError(
                f"the file system of {folder} has no hard links ({error.strerror}), and what is stored there needs them: "
                "choose a data directory, or a place for the checkout, on a Linux file system"
            ) from error
        link.unlink()


def damaged(data: Path) -> str:
    """The way out of a start that failed, for the case that it was the data."""
    return f"if {data} is damaged, put a backup in its place or move it away"


def remove(directory: Path) -> None:
    """Deletes the data, wherever they are, and the directory. Raises StackError while a server uses them."""
    if not directory.exists():
        return
    link = directory / "data"
    home = link.readlink().parent if link.is_symlink() else directory
    if home.exists():
        descriptors = [lock_supervisor(home), lock_server(home, patience_s=10)]
        shutil.rmtree(home)
        for descriptor in descriptors:
            os.close(descriptor)
    if directory.exists():
        shutil.rmtree(directory)


def _home(directory: Path, account: Account | None, shelter: Path) -> Path:
    link = directory / "data"
    if link.is_symlink():
        home = link.readlink().parent
        if not home.is_dir():
            raise StackError(
                f"{link} points into {home}, which is gone: bring it back, or remove {directory}"
            )
        return home
    if account is None or link.exists() or can_enter(directory, account):
        return directory
    shelter.mkdir(parents=True, exist_ok=True)
    shelter.chmod(stat.S_IMODE(shelter.stat().st_mode) | 0o711)  # whatever the umask left
    home = Path(tempfile.mkdtemp(prefix=f"{directory.name}-", dir=shelter))
    home.chmod(0o711)
    if not can_enter(home, account):
        home.rmdir()
        raise StackError(
            f"uid {account.uid}, which the server runs under, can enter neither {directory} nor {shelter}: "
            "choose a data directory that it can enter"
        )
    (home / "belongs-to").write_text(f"{directory}\n")
    try:
        link.symlink_to(home / "data")
    except FileExistsError:  # another start was faster
        shutil.rmtree(home)
        return link.readlink().parent
    return home


def _socket_folders(home: Path) -> Iterator[Path]:
    yield home / "socket"
    yield Path(tempfile.gettempdir()) / f"everturn-{os.geteuid()}-{_digest(str(home))}"


def _make_private(folder: Path, account: Account | None) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    expected = {os.geteuid()} if account is None else {os.geteuid(), account.uid}
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in expected:
        raise StackError(f"{folder} was made by somebody else (uid {found.st_uid}): remove it, or set TMPDIR")
    folder.chmod(0o700)


def _holds_sockets(folder: Path) -> bool:
    """Some file systems of shares and virtual machines have no sockets."""
    trial = folder / "s"
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(os.fsencode(trial))
        except OSError:
            return False
    trial.unlink()
    return True


def _fingerprint(program: Path) -> str:
    found = program.stat()
    return _digest(f"{program}:{found.st_size}:{found.st_mtime_ns}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _open_to_all(root: Path) -> None:
    for folder, _, files in os.walk(root):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder) / name
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
