"""scripts/setup.sh: where torch comes from; and where it cannot go on, one line that says why and what to do, a status that is not 0, and nothing taken for done."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/setup.sh"
STUB = """#!/bin/sh
case "$*" in
  *CDLL*) {probe} ;;
  *version_info*) exit {old} ;;
  -V) echo "Python 3.9.2" ;;
  "-m venv .venv") {venv} ;;
  *importlib.metadata*) exit {torch} ;;
  *" install "*) echo "$*" >>pip.log
    case "$*" in {installs}) exit 0 ;; esac
    echo "ERROR: No matching distribution"; exit 1 ;;
esac
"""
"""A Python that does what each test is about, without a network."""
MAKES_VENV = "mkdir -p .venv/bin && cp $0 .venv/bin/python"
NOT_THERE = """
import ctypes, sys
load, gone = ctypes.CDLL, {gone!r}
def cdll(name):
    if name in gone:
        raise OSError(f"{{name}}: cannot open shared object file: No such file or directory")
    return load(name)
ctypes.CDLL = cdll
sys.modules.update(dict.fromkeys(gone))
"""
"""A sitecustomize of a machine without these libraries and modules."""
TORCH = re.search(r"^torch==(.*)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    status: int
    out: list[str]
    err: list[str]
    installs: list[str]
    """What pip was told to install, as it was told."""
    done: bool


def said(folder: Path, *, system: str = "Linux x86_64", **stub: object) -> Said:
    (folder / "scripts").mkdir()
    for name in ("scripts/setup.sh", "requirements.txt", "requirements-dev.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    programs = folder / "bin"
    programs.mkdir()
    usual = {"probe": "exit 0", "old": 0, "venv": MAKES_VENV, "torch": 0, "installs": "nothing"}
    for name, text in {
        "python": STUB.format(**usual | stub),
        "uname": f'#!/bin/sh\ncase $1 in -s) echo "{system.split(maxsplit=1)[0]}" ;; *) echo "{system}" ;; esac\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    ran = subprocess.run(
        ["scripts/setup.sh"],
        cwd=folder,
        env={"PATH": f"{programs}:/usr/bin:/bin", "PYTHON": str(programs / "python")},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    log = folder / "pip.log"
    return Said(
        status=ran.returncode,
        out=ran.stdout.splitlines(),
        err=ran.stderr.splitlines(),
        installs=log.read_text().splitlines() if log.exists() else [],
        done=bool(list(folder.glob(".venv/*.stamp"))),
    )


def without(folder: Path, *gone: str) -> str:
    """A probe by this Python, to which these libraries and modules are not there."""
    (folder / "sitecustomize.py").write_text(NOT_THERE.format(gone=gone))
    return f'PYTHONPATH={folder} exec {sys.executable} "$@"'


def test_a_python_of_another_version_is_named_with_the_way_to_name_one(tmp_path: Path) -> None:
    told = said(tmp_path, old=1)
    assert (told.status, told.done) == (1, False)
    (line,) = told.err
    assert line.endswith(
        "is Python 3.9.2; Python 3.11 or 3.12 is needed: name one with PYTHON=/path/to/python3.11"
    )
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("gone", "packages"),
    [
        (("libnuma.so.1",), "libnuma1"),
        (("ensurepip",), "python3-venv"),
        (("libnuma.so.1", "libz.so.1", "ensurepip"), "libnuma1 zlib1g python3-venv"),
    ],
)
def test_what_the_machine_lacks_is_named_all_of_it_before_anything_is_installed(
    tmp_path: Path, gone: tuple[str, ...], packages: str
) -> None:
    told = said(tmp_path, probe=without(tmp_path, *gone))
    assert (told.status, told.done) == (1, False)
    assert told.err == [
        f"setup: this machine lacks {', '.join(gone)}; install what brings it (Debian: apt-get install {packages})"
    ]
    assert not told.out
    assert not (tmp_path / ".venv").exists()


def test_a_machine_that_lacks_nothing_is_installed_on(tmp_path: Path) -> None:
    told = said(tmp_path, probe=without(tmp_path), installs="*")
    assert (told.status, told.err, told.done) == (0, [], True)


def test_what_only_linux_has_is_asked_of_linux_alone(tmp_path: Path) -> None:
    told = said(tmp_path, system="Darwin arm64", probe=without(tmp_path, "libnuma.so.1"), installs="*")
    assert (told.status, told.err, told.done) == (0, [], True)


def test_where_no_environment_can_be_made_the_package_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    told = said(tmp_path, venv="mkdir .venv; exit 1")
    assert (told.status, told.done) == (1, False)
    assert told.err == ["setup: python3 -m venv failed (Debian: apt-get install python3-venv)"]
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(("torch", "what"), [(1, r"torch "), (0, "the locked packages")])
def test_what_pip_cannot_install_is_said_last_and_the_next_run_begins_there(
    tmp_path: Path, torch: int, what: str
) -> None:
    told = said(tmp_path, torch=torch)
    assert (told.status, told.done) == (1, False)
    assert "ERROR: No matching distribution" in told.out
    (line,) = told.err
    assert line.startswith(f"setup: pip could not install {what}")
    assert line.endswith("and the next run goes on from here")


def torch_installs(told: Said) -> list[list[str]]:
    """The words after pip's own, of each call that asks for torch by name."""
    return [call.split(" install ")[1].split() for call in told.installs if "torch==" in call]


def wheels_of_pytorch() -> str:
    found = re.search(r"--index-url (\S+)", SCRIPT.read_text())
    assert found
    return found[1]


def wanted(build: str) -> str:
    assert TORCH
    return f"torch=={TORCH[1]}{build}"


def test_torchs_cpu_build_is_asked_first_of_pip_as_it_is_set_up_here_and_then_of_nobody_else(
    tmp_path: Path,
) -> None:
    told = said(tmp_path, torch=1, installs="*")
    assert torch_installs(told) == [["--quiet", "--no-deps", wanted("+cpu")]]
    assert "--index-url" not in " ".join(told.installs)
    assert told.done


def test_pytorchs_own_wheels_are_asked_only_where_pip_has_no_cpu_build(tmp_path: Path) -> None:
    told = said(tmp_path, torch=1, installs="*--index-url*|*requirements*|*editable*")
    assert torch_installs(told) == [
        ["--quiet", "--no-deps", wanted("+cpu")],
        ["--quiet", "--no-deps", "--index-url", wheels_of_pytorch(), wanted("+cpu")],
    ]
    assert "ERROR: No matching distribution" not in told.out, "the first try is no failure"
    assert told.done


def test_the_locked_packages_come_after_torch_and_never_from_pytorchs_index(tmp_path: Path) -> None:
    told = said(tmp_path, torch=1, installs="*--index-url*|*requirements*|*editable*")
    after = told.installs[len(torch_installs(told)) :]
    assert [call.split()[-2:] for call in after] == [["-r", "requirements.txt"], ["--editable", "."]]
    assert "--index-url" not in " ".join(after)


def test_where_there_is_no_cuda_build_the_plain_one_is_taken(tmp_path: Path) -> None:
    told = said(tmp_path, system="Linux aarch64", torch=1, installs="*")
    assert torch_installs(told) == [["--quiet", "--no-deps", wanted("")]]


def test_a_torch_that_is_there_is_not_installed_again(tmp_path: Path) -> None:
    told = said(tmp_path, torch=0, installs="*")
    assert torch_installs(told) == []
    assert told.done
