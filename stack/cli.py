"""`everturn`: one command line, one module of stack/commands for each group of commands."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from service.domain.errors import EverturnError, NotFound
from stack.errors import StackError, unusable
from stack.terminal import spare_characters

DATA = Path(".everturn")

COMMANDS = {
    "local": ("up", "down", "status", "clean"),
    "chat": ("chat",),
    "import_transcripts": ("import",),
    "guard": ("guard",),
    "revision": ("revision",),
    "rollout": ("rollout",),
    "rebuilds": ("rebuilds",),
    "kv": ("kv",),
    "events": ("events",),
    "erase": ("erase",),
    "contract": ("contract",),
    "keys": ("keys", "tenants"),
    "audit": ("audit",),
    "retention": ("retention",),
}
"""Modules of stack/commands, each with what it adds: a command loads its own alone, since all of them take a second."""


LISTED_BY = {
    "tenant": "tenants ls",
    "key": "keys ls",
    "rebuild": "rebuilds ls",
    "rollout": "rollout ls",
    "contract": "contract list",
}
"""Kinds of things, and the command that shows those that are there."""


def main(arguments: Sequence[str] | None = None) -> int:
    spare_characters()
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--data", type=Path, default=DATA, help="of the stack on this machine (default: %(default)s)"
    )
    parser = argparse.ArgumentParser(
        prog="everturn", description="Keeps conversations alive across model upgrades.", parents=[options]
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in _modules(options.parse_known_args(arguments)[1]):
        import_module(f"stack.commands.{module}").add(commands)
    given = parser.parse_args(arguments)
    given.data = given.data.absolute()
    try:
        status: int = given.run(given)
    except (StackError, EverturnError) as error:
        print(f"everturn: {_with_way_out(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"everturn: {unusable(error, given.data)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("everturn: interrupted; `make down` stops what still runs", file=sys.stderr)
        return 130
    return status


def _with_way_out(error: Exception) -> str:
    if isinstance(error, NotFound) and error.kind in LISTED_BY:
        return f"{error} `everturn {LISTED_BY[error.kind]}` lists them."
    return str(error)


def _modules(arguments: Sequence[str]) -> Iterable[str]:
    """All where the first argument is no command: help and errors list them."""
    named = [module for module, names in COMMANDS.items() if set(names) & set(arguments[:1])]
    return named or COMMANDS
