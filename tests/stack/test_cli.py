"""The command line as a whole: each command loads what it needs, and help lists all of them."""

import argparse
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from stack import cli
from stack.cli import COMMANDS, LISTED_BY
from tests.stack.supervisors import REPOSITORY


@pytest.mark.parametrize("module", COMMANDS)
def test_a_module_adds_the_commands_that_it_is_loaded_for(module: str) -> None:
    parsers = argparse.ArgumentParser().add_subparsers()
    import_module(f"stack.commands.{module}").add(parsers)
    assert tuple(parsers.choices) == COMMANDS[module]


def test_every_module_with_commands_is_in_the_table() -> None:
    folder = Path(cli.__file__).parent / "commands"
    able = {file.stem for file in folder.glob("*.py") if "def add(commands: Commands)" in file.read_text()}
    assert set(COMMANDS) == able


@pytest.mark.parametrize("arguments", [["--help"], ["--data", "here", "--help"], ["frobnicate"], []])
def test_all_commands_are_listed_where_none_is_named(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(arguments)
    said = capsys.readouterr()
    if arguments:
        assert all(name in said.out + said.err for names in COMMANDS.values() for name in names)
    else:
        assert "the following arguments are required: COMMAND" in said.err


@pytest.mark.parametrize("command", ["status", "down"])
def test_a_command_loads_its_own_module_alone(command: str, tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stack", "--data", str(tmp_path / "chat"), command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines() if "|" in line}
    assert "stack.background" in loaded
    assert not loaded & {"sqlalchemy", "httpx"}


@pytest.mark.parametrize("command", LISTED_BY.values())
def test_what_is_named_as_the_way_out_is_a_command(command: str) -> None:
    module = next(m for m, names in COMMANDS.items() if command.split(maxsplit=1)[0] in names)
    parsers = argparse.ArgumentParser()
    import_module(f"stack.commands.{module}").add(parsers.add_subparsers())
    assert callable(parsers.parse_args(command.split()).run)
