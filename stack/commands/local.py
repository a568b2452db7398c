"""`everturn up | down | status | clean`: the whole of Everturn on this machine, kept running in the background."""

import argparse
import os
from pathlib import Path

from stack import background
from stack.commands.parsers import Commands


def add(commands: Commands) -> None:
    up = commands.add_parser("up", help="start PostgreSQL, Valkey, API, Celery worker and one engine")
    port = os.environ.get("EVERTURN_PORT", "8000")
    up.add_argument("--port", type=_port, default=port, help="of the API (default: EVERTURN_PORT, or 8000)")
    model = os.environ.get("EVERTURN_MODEL")
    up.add_argument(
        "--model",
        type=Path,
        required=model is None,
        default=model,
        help="folder of a checkpoint with .safetensors (default: EVERTURN_MODEL)",
    )
    up.set_defaults(run=_up)
    down = commands.add_parser("down", help="stop all of it; data stays")
    down.set_defaults(run=lambda given: background.down(given.data))
    status = commands.add_parser("status", help="what runs, and where its logs are")
    status.set_defaults(run=lambda given: background.status(given.data))
    clean = commands.add_parser("clean", help="stop, then delete data, keys, KV and checkpoints")
    clean.set_defaults(run=lambda given: background.clean(given.data))


def _port(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no port: set --port or EVERTURN_PORT to a number")
    return int(text)


def _up(given: argparse.Namespace) -> int:
    return background.up(given.data, port=given.port, model=given.model)
