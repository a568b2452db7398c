"""`everturn up | down | status | clean`: the whole of Everturn on this machine, kept running in the background."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from service.domain.errors import EverturnError
from stack import background
from stack.errors import StackError

DATA = Path(".everturn")


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    data: Path = given.data.absolute()
    try:
        match given.command:
            case "up":
                return background.up(data, port=given.port, model=given.model)
            case "down":
                return background.down(data)
            case "status":
                return background.status(data)
            case _:
                return background.clean(data)
    except (StackError, EverturnError) as error:
        print(f"everturn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("everturn: interrupted; `make down` stops what still runs", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="everturn", description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=DATA, help="where everything is kept (default: %(default)s)"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start PostgreSQL, Valkey, API, Celery worker and one engine")
    up.add_argument(
        "--port",
        type=int,
        default=os.environ.get("EVERTURN_PORT", "8000"),
        help="of the API (default: EVERTURN_PORT, or 8000)",
    )
    model = os.environ.get("EVERTURN_MODEL")
    up.add_argument(
        "--model",
        type=Path,
        required=model is None,
        default=model,
        help="folder of a checkpoint with .safetensors (default: EVERTURN_MODEL)",
    )
    commands.add_parser("down", help="stop all of it; data stays")
    commands.add_parser("status", help="what runs, and where its logs are")
    commands.add_parser("clean", help="stop, then delete data, keys, KV and checkpoints")
    return parser
