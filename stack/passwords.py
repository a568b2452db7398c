"""The password of an embedded server: made once, kept in a file that only its owner and root can read."""

import secrets
from pathlib import Path

from stack.errors import StackError
from stack.placement import Placement
from stack.privileges import give


def password_file(placement: Placement) -> Path:
    return placement.home / "password"


def make_password(placement: Placement) -> str:
    path = password_file(placement)
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    password = secrets.token_hex(24)
    fresh.write_text(f"{password}\n")
    give(fresh, placement.account)
    fresh.replace(path)
    return password


def read_password(placement: Placement) -> str:
    path = password_file(placement)
    try:
        return path.read_text().strip()
    except OSError as error:
        raise StackError(
            f"cannot read {path}: {error.strerror}; bring it back, or remove {placement.home} with its data"
        ) from error
