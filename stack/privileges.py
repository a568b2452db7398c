"""Which account a server runs under when the stack is started by root, and what that account can reach."""

import os
import pwd
import subprocess
from pathlib import Path

from stack.errors import StackError
from workers.child import Account

# Neither is created here: an account made by a demo would outlive it.
CANDIDATES = ("postgres", "nobody")


def server_account(data: Path) -> Account | None:
    """None means: run as we are. Existing data keep their owner, as PostgreSQL accepts no other.

    Raises:
        StackError: the data belong to somebody else, or root finds no account to drop to.
    """
    owner = data.stat() if data.exists() else None
    if os.geteuid() != 0:
        if owner is not None and owner.st_uid != os.geteuid():
            raise StackError(
                f"{data} belongs to uid {owner.st_uid}, not to uid {os.geteuid()} that started the stack: "
                "start it as that user, or choose another data directory"
            )
        return None
    if owner is not None and owner.st_uid != 0:
        return Account(uid=owner.st_uid, gid=owner.st_gid)
    for name in CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise StackError(
        f"servers refuse to run as root and none of the accounts {', '.join(CANDIDATES)} exists: "
        "start the stack as an ordinary user"
    )


def can_enter(folder: Path, account: Account) -> bool:
    """Asks the kernel as that account: mode bits alone know nothing of ACLs and mounts."""
    return _succeeds(["test", "-x", str(folder)], account)


def can_run(program: Path, account: Account) -> bool:
    return can_enter(program, account) and _succeeds([str(program), "--version"], account)


def give(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid)


def _succeeds(argv: list[str], account: Account) -> bool:
    try:
        done = subprocess.run(
            argv,
            check=False,
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
    except OSError as error:
        if error.filename == argv[0]:
            return False  # the account was changed, and cannot run this
        raise StackError(
            f"cannot run {argv[0]} as uid {account.uid}: {error.strerror}; "
            "start the stack as an ordinary user, or allow this container to change users"
        ) from error
    return done.returncode == 0
