"""Where a socket can be, and what a file system must have."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from stack import placement
from stack.errors import StackError
from stack.placement import LONGEST_SOCKET_PATH, Placement, require_links, socket_folder


def of(home: Path) -> Placement:
    return Placement(home=home, account=None)


def test_it_is_beside_the_data_where_they_may_have_one(tmp_path: Path) -> None:
    assert socket_folder(of(tmp_path), "s.sock") == tmp_path / "socket"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Pytest's own can leave no room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="evt-") as folder:
        yield Path(folder)


def test_a_file_system_without_sockets_is_told_by_trying() -> None:
    assert not placement._holds_sockets(Path("/proc/self"))


def test_on_a_file_system_without_sockets_it_is_elsewhere(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short_path / "home").mkdir()
    (short_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(short_path / "elsewhere"))
    monkeypatch.setattr(placement, "_holds_sockets", lambda folder: folder.parent != short_path / "home")
    assert socket_folder(of(short_path / "home"), "s.sock").parent == short_path / "elsewhere"


def test_a_name_that_lists_hosts_to_libpq_is_not_its_own(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short_path / "a,b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    assert socket_folder(of(short_path / "a,b"), "s.sock").parent == short_path


def test_where_there_can_be_none_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * LONGEST_SOCKET_PATH)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(StackError, match=r"no socket can be made in .*; set TMPDIR to a folder such as /tmp"):
        socket_folder(of(deep), "s.sock")
    assert list(deep.iterdir()) == []


def test_a_file_system_with_hard_links_passes_and_is_left_as_it_was(tmp_path: Path) -> None:
    require_links(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StackError, match=r"has no hard links \(Operation not permitted\)"):
        require_links(tmp_path)
    assert list(tmp_path.iterdir()) == []
