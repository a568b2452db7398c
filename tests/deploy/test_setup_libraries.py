"""What the installed packages load of the machine's own is what scripts/setup.sh asks for, and no more."""

import re
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.deploy.elf import needed

SCRIPT = Path(__file__).parents[2] / "scripts/setup.sh"
PACKAGES = Path(sysconfig.get_path("purelib"))
OF_THE_C_LIBRARY = re.compile(r"(ld-linux.*|lib(c|m|dl|pthread|resolv|rt|util)\.so\.\d+)")
PLUGINS = PACKAGES / "numba/np/ufunc"
"""Ways to run threads, of which numba takes one whose library is there."""


@pytest.mark.skipif(sys.platform != "linux", reason="setup.sh asks this of Linux alone")
def test_the_libraries_that_nobody_brings_are_those_that_setup_asks_for() -> None:
    files = [path for path in PACKAGES.rglob("*") if path.is_file() and not path.is_relative_to(PLUGINS)]
    programs = [path for path in files if ".so" in path.name or path.stat().st_mode & 0o100]
    brought = {path.name for path in PACKAGES.rglob("*.so*")}
    wanted = {name for path in programs for name in needed(path)}
    asked = set(re.findall(r"([\w+]+\.so\.\d+)=", SCRIPT.read_text()))
    assert {n for n in wanted - brought if not OF_THE_C_LIBRARY.fullmatch(n)} == asked
