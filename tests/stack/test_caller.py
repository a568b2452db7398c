"""Who the record says gave a command: by name, and by number where there is none."""

import os
import pwd
from typing import NoReturn

import pytest

from stack.caller import caller


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a user of whom it knows nothing."""

    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)


def test_a_name_is_taken_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert caller() == "cli:ada"


def test_a_user_without_a_name_is_known_by_number() -> None:
    assert caller() == f"cli:uid {os.getuid()}"
