"""The files by which a connector tells its front what happened."""

import os
from pathlib import Path

import pytest

from service.domain.artifact import BootId
from service.domain.evidence import Evidence
from workers.kv_connector.reports import KnownIdentity, Reports, read_attempt


def evidence(attempt: str) -> Evidence:
    return Evidence(attempt=attempt, boot=BootId("boot_1"), revision=None, prompt_tokens=1)


def test_evidence_is_read_as_it_was_written(tmp_path: Path) -> None:
    Reports(tmp_path).write_attempt(evidence("turn.1"), publishing=True)
    found = read_attempt(tmp_path, "turn.1")
    assert found is not None
    assert (Evidence.from_json(found[0]), found[1]) == (evidence("turn.1"), True)


def test_an_attempts_name_is_never_a_path(tmp_path: Path) -> None:
    name = "../../outside\x00" + "x" * 5000
    Reports(tmp_path / "run").write_attempt(evidence(name), publishing=False)
    assert read_attempt(tmp_path / "run", name) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_the_oldest_reports_go_first_also_after_a_restart(tmp_path: Path) -> None:
    reports = Reports(tmp_path, kept=3)
    for index in range(3):
        reports.write_attempt(evidence(f"a{index}"), publishing=False)
    for index, path in enumerate(
        sorted((tmp_path / "attempts").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    ):
        os.utime(path, (index, index))
    Reports(tmp_path, kept=3).write_attempt(evidence("a3"), publishing=False)
    assert read_attempt(tmp_path, "a0") is None
    assert all(read_attempt(tmp_path, f"a{index}") is not None for index in (1, 2, 3))


def test_reporting_the_same_attempt_again_costs_no_other_its_place(tmp_path: Path) -> None:
    reports = Reports(tmp_path, kept=2)
    reports.write_attempt(evidence("a"), publishing=False)
    for _ in range(5):
        reports.write_attempt(evidence("b"), publishing=False)
    assert read_attempt(tmp_path, "a") is not None


def test_the_identity_of_a_boot_before_is_forgotten(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    reports.write_identity({"boot": "boot_1"})
    known = KnownIdentity(tmp_path)
    assert known.read() == {"boot": "boot_1"}
    reports.forget_identity()
    assert known.read() is None


def test_an_identity_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    reports, known = Reports(tmp_path), KnownIdentity(tmp_path)
    reports.write_identity({"boot": "boot_1", "revision": "measured"})
    assert [known.read() for _ in range(3)] == [{"boot": "boot_1", "revision": "measured"}] * 3
    assert len(read) == 1
    reports.write_identity({"boot": "boot_1", "revision": None})
    assert known.read() == {"boot": "boot_1", "revision": None}
