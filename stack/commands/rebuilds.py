"""`everturn rebuilds ls | show | cancel | retry`: the queue of rebuilds, and what to do with one of them."""

import argparse
from collections.abc import Callable
from typing import Any

import httpx

from stack import operator_api
from stack.commands.parsers import Commands
from workers.fleet_client import FleetClient

STATES = ("queued", "running", "done", "failed", "superseded")


def add(commands: Commands) -> None:
    group = commands.add_parser("rebuilds", help="KV that workers rebuild, or could not")
    actions = group.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("ls", help="the newest first")
    listed.add_argument("--state", choices=STATES)
    listed.add_argument("--queue", choices=("interactive", "background"))
    listed.add_argument("--rollout", help="that they warm for")
    listed.add_argument("--limit", type=int, default=50)
    shown = actions.add_parser("show", help="all that is known of one")
    cancel = actions.add_parser("cancel", help="a turn that waits for it prefills where it decodes")
    retry = actions.add_parser("retry", help="of a rollout: one that failed is queued again")
    for parser in (cancel, retry):
        parser.add_argument("--by", help="who does it (default: the key's id)")
    for parser, run in ((listed, _list), (shown, _show), (cancel, _move), (retry, _move)):
        if parser is not listed:
            parser.add_argument("rebuild", help="rb_...")
        operator_api.add_arguments(parser)
        parser.set_defaults(run=run)


def _list(given: argparse.Namespace) -> int:
    filters = {name: getattr(given, name) for name in ("state", "queue", "rollout", "limit")}
    wanted = {name: str(value) for name, value in filters.items() if value is not None}
    for one in _asked(given, lambda client: client.rebuilds(wanted)):
        print(_line(one))
    return 0


def _show(given: argparse.Namespace) -> int:
    for name, value in _asked(given, lambda client: client.rebuild(given.rebuild)).items():
        print(f"{name}: {'-' if value is None else value}")
    return 0


def _move(given: argparse.Namespace) -> int:
    why = {"by": given.by} if given.by else {}
    print(_line(_asked(given, lambda client: client.move_rebuild(given.rebuild, given.action, why))))
    return 0


def _line(one: dict[str, Any]) -> str:
    parts = [one["id"], one["queue"], one["state"], f"{one['tokens_done']}/{one['tokens_total']} tokens"]
    parts += [one["conversation"], f"for {one['rollout'] or one['turn']}"]
    return "  ".join([*parts, *([one["reason"]] if one["reason"] else [])])


def _asked(given: argparse.Namespace, call: Callable[[FleetClient], Any]) -> Any:
    with httpx.Client(trust_env=False) as http:
        return call(operator_api.fleet_client(given, http))
