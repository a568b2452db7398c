"""Where a command finds the operator's API and key: as given, else those of the stack on this machine."""

import argparse
from pathlib import Path

import httpx

from stack.local_api import local_address
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
        api=given.api.rstrip("/") if given.api else local_address(given.data, "--api"),
        key_file=given.key_file or home / "operator.key",
    )
