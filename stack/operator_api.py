"""Where a command finds the operator's API and key: as given, else those of the stack on this machine."""

import argparse
import json
from pathlib import Path

import httpx

from stack.errors import StackError
from workers.fleet_client import FleetClient


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--api", help="address of the Everturn API (default: the stack on this machine)")
    parser.add_argument(
        "--key-file",
        type=Path,
        help="file with the operator key (default: that of the stack on this machine)",
    )


def fleet_client(given: argparse.Namespace, http: httpx.Client) -> FleetClient:
    home = given.data / "run"
    return FleetClient(
        http=http,
        api=given.api.rstrip("/") if given.api else _local_address(home / "ready.json"),
        key_file=given.key_file or home / "operator.key",
    )


def _local_address(ready: Path) -> str:
    try:
        return str(json.loads(ready.read_text())["url"])
    except (OSError, ValueError, KeyError) as error:
        raise StackError("no stack runs on this machine: start one with `make up`, or give --api") from error
