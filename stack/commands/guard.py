"""`everturn guard check`: whether engines are protected, by trying to get past them."""

import argparse
from pathlib import Path

import httpx

from service.domain.errors import InvalidInput
from stack import operator_api
from stack.commands.parsers import Commands
from workers.guard_check import GuardCheck


def add(commands: Commands) -> None:
    guard = commands.add_parser("guard", help="whether an engine keeps KV of other revisions and tenants out")
    check = guard.add_subparsers(dest="action", required=True, metavar="ACTION").add_parser(
        "check", help="try its guard: one line a check, exit status 1 unless all hold"
    )
    which = check.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "url", nargs="?", metavar="URL", help="of the engine itself, such as http://127.0.0.1:8101"
    )
    which.add_argument("--engine", metavar="BOOT", help="boot id of a registered engine, or 'all'")
    check.add_argument(
        "--engine-key-file",
        type=Path,
        metavar="FILE",
        help="with the key that vLLM was given as --api-key, if it was",
    )
    operator_api.add_arguments(check)
    check.set_defaults(run=_check)


def _check(given: argparse.Namespace) -> int:
    holds, key = True, _engine_key(given.engine_key_file)
    with httpx.Client(trust_env=False) as http:
        for name, address in _engines(given, http):
            print(f"{name} at {address}")
            for finding in GuardCheck(http=http, address=address, key=key).findings():
                print(f"  {finding}")
                holds = holds and finding.holds
    print("protected" if holds else "NOT protected")
    return 0 if holds else 1


def _engine_key(file: Path | None) -> str | None:
    """From a file: a command line is seen by everyone on the machine."""
    if file is None:
        return None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"--engine-key-file '{file}' cannot be read ({error}): write the engine's key into it.",
            "--engine-key-file",
        ) from error
    if not key or any(character.isspace() for character in key):
        raise InvalidInput(
            f"--engine-key-file '{file}' does not hold one key: write the engine's key into it, and nothing else.",
            "--engine-key-file",
        )
    return key


def _engines(given: argparse.Namespace, http: httpx.Client) -> list[tuple[str, str]]:
    if given.url:
        return [("engine", given.url.rstrip("/"))]
    known = {engine["boot"]: engine["address"] for engine in operator_api.fleet_client(given, http).engines()}
    if given.engine == "all" and known:
        return sorted(known.items())
    if given.engine not in known:
        raise InvalidInput(
            f"--engine '{given.engine}' is not registered (registered: {', '.join(sorted(known)) or 'none'}): "
            "give one of these, 'all', or the engine's URL.",
            "--engine",
        )
    return [(given.engine, known[given.engine])]
