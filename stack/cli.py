"""`everturn`: one command line, one module of stack/commands for each group of commands."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from service.domain.errors import EverturnError
from stack.commands import (
    audit,
    chat,
    contract,
    erase,
    events,
    guard,
    import_transcripts,
    keys,
    kv,
    local,
    rebuilds,
    retention,
    revision,
    rollout,
)
from stack.errors import StackError, unusable

DATA = Path(".everturn")

COMMANDS = (
    local,
    chat,
    import_transcripts,
    guard,
    revision,
    rollout,
    rebuilds,
    kv,
    events,
    erase,
    contract,
    keys,
    audit,
    retention,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="everturn", description="Keeps conversations alive across model upgrades."
    )
    parser.add_argument(
        "--data", type=Path, default=DATA, help="of the stack on this machine (default: %(default)s)"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.add(commands)
    given = parser.parse_args(arguments)
    given.data = given.data.absolute()
    try:
        status: int = given.run(given)
    except (StackError, EverturnError) as error:
        print(f"everturn: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"everturn: {unusable(error, given.data)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("everturn: interrupted; `make down` stops what still runs", file=sys.stderr)
        return 130
    return status
