"""`everturn rollout start | ls | show | watch | pause | resume | abort | back`: an alias moved in steps, and taken back."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

import httpx

from stack import operator_api
from stack.commands.parsers import Commands
from stack.progress import CLEAR_LINE
from workers.fleet_client import FleetClient

LOOK_EVERY_S = 1.0
SHORT = 12
"""Of a digest, as much as a person compares."""
ENDED_BADLY = ("aborted", "rolled_back")
STOPPED = 2
"""Exit status of a watch that ends with a rollout that waits for somebody's decision."""
WAITED_FOR = {"engine": "an engine", "next_attempt": "another attempt", "worker": "a worker"}


def add(commands: Commands) -> None:
    group = commands.add_parser("rollout", help="move an alias to another revision, step by step")
    actions = group.add_subparsers(dest="action", required=True, metavar="ACTION")
    start = actions.add_parser("start", help="prints its id")
    _describe_start(start)
    listed = actions.add_parser("ls", help="the newest first")
    listed.add_argument("--alias", help="only of this one")
    shown = actions.add_parser("show", help="where it stands, and what it waits for")
    watched = actions.add_parser("watch", help="until it ends or pauses; exit status 2 where it paused")
    moves = {
        "pause": "no further step; conversations stay where they are",
        "resume": "go on where it was",
        "abort": "every conversation goes back; the alias stays, or returns",
        "back": "roll back, also one that is done; prints the id of the rollout that leads back",
    }
    parsers = [(start, _start), (listed, _list), (shown, _show), (watched, _watch)]
    for name, help_ in moves.items():
        parser = actions.add_parser(name, help=help_)
        parser.add_argument("--reason", default="", help="for the record")
        parser.add_argument("--by", help="who does it (default: the key's id)")
        parsers.append((parser, _move))
    for parser, run in parsers:
        if parser not in (start, listed):
            parser.add_argument("rollout", help="ro_...")
        operator_api.add_arguments(parser)
        parser.set_defaults(run=run)


def _describe_start(start: argparse.ArgumentParser) -> None:
    start.add_argument("alias")
    start.add_argument("to", help="rev_... that it is to point at")
    start.add_argument("--from", dest="source", help="rev_... that it is taken to point at")
    start.add_argument(
        "--warm", type=int, default=0, metavar="N", help="rebuild the KV of N conversations first"
    )
    start.add_argument("--tokens-per-s", type=int, metavar="N", help="the pace of that")
    start.add_argument(
        "--shift", type=_numbers, default=[100], metavar="10,50,100", help="percent of the conversations"
    )
    start.add_argument(
        "--hold", type=_numbers, default=[0], metavar="S[,S...]", help="seconds at each percentage"
    )
    start.add_argument(
        "--drain", choices=("never", "unpinned", "always"), default="unpinned", help="the engines of before"
    )
    start.add_argument(
        "--max-engine-load",
        type=int,
        metavar="N",
        help="warm nothing while all engines of TO have more than N requests under way",
    )
    for what, most in (
        ("refusals", 5),
        ("failed-attempts", 5),
        ("failed-rebuilds", 5),
        ("failed-canaries", 0),
    ):
        start.add_argument(
            f"--max-{what}", type=int, default=most, metavar="N", help="pause by itself beyond that"
        )
    start.add_argument("--reason", default="", help="for the record")
    start.add_argument("--by", help="who does it (default: the key's id)")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _start(given: argparse.Namespace) -> int:
    wanted: dict[str, Any] = {
        "alias": given.alias,
        "to": given.to,
        "warm": given.warm,
        "shift": given.shift,
        "hold_s": given.hold if len(given.hold) > 1 else given.hold[0],
        "drain": given.drain,
        "limits": {
            "refusals": given.max_refusals,
            "failed_attempts": given.max_failed_attempts,
            "failed_rebuilds": given.max_failed_rebuilds,
            "failed_canaries": given.max_failed_canaries,
        },
        "reason": given.reason,
    }
    optional = {
        "from": given.source,
        "warm_tokens_per_s": given.tokens_per_s,
        "max_engine_load": given.max_engine_load,
        "by": given.by,
    }
    wanted |= {name: value for name, value in optional.items() if value is not None}
    print(_asked(given, lambda client: client.start_rollout(wanted))["rollout"])
    return 0


def _list(given: argparse.Namespace) -> int:
    for one in _asked(given, lambda client: client.rollouts(given.alias)):
        print(f"{one['rollout']}  {one['alias']}  {one['started_at'][:19]}  {line(one)}")
    return 0


def _show(given: argparse.Namespace) -> int:
    found = _asked(given, lambda client: client.rollout(given.rollout))
    print(f"{found['rollout']}: alias {found['alias']}")
    print(f"  from {found['from']}\n  to   {found['to']}")
    if found["back_of"]:
        print(f"  takes back {found['back_of']}")
    print(f"  {line(found)}")
    print(f"  last step: {found['reason'] or 'no reason given'}")
    for name in ("warm", "troubles"):
        print(f"  {name}: " + ", ".join(f"{key} {value}" for key, value in found[name].items()))
    return 0


def _move(given: argparse.Namespace) -> int:
    why = {"reason": given.reason} | ({"by": given.by} if given.by else {})
    moved = _asked(given, lambda client: client.move_rollout(given.rollout, given.action, why))
    print(f"{moved['rollout']}  {line(moved)}")
    return 0


def _watch(given: argparse.Namespace) -> int:
    with httpx.Client(trust_env=False) as http:
        client = operator_api.fleet_client(given, http)
        width = shutil.get_terminal_size().columns
        return watch(lambda: client.rollout(given.rollout), sys.stdout, time.sleep, width)


def watch(
    look: Callable[[], Mapping[str, Any]],
    out: TextIO,
    sleep: Callable[[float], object],
    width: int = sys.maxsize,
) -> int:
    """One line that is drawn anew on a terminal; elsewhere a line for each change."""
    terminal, last, state = out.isatty(), "", ""
    while True:
        found = look()
        now = line(found)
        if terminal:
            kept = "\n" if state and state != found["state"] else ""
            # A line that wraps cannot be drawn over.
            out.write(f"{kept}{CLEAR_LINE}{now[: width - 1]}")
        elif _steady(found) != last:
            out.write(f"{now}\n")
        out.flush()
        last, state = _steady(found), found["state"]
        if found["ended_at"] or state == "paused":
            if terminal:
                out.write("\n")
            return STOPPED if state == "paused" else int(state in ENDED_BADLY)
        sleep(LOOK_EVERY_S)


def line(found: Mapping[str, Any]) -> str:
    """Where a rollout stands, for a person."""
    parts = [f"{found['from'][:SHORT]} → {found['to'][:SHORT]}", found["state"], f"{found['percent']}%"]
    warm = found.get("warm")
    if warm and warm["total"]:
        settled = warm["total"] - warm["waiting"] - warm["running"]
        parts.append(f"warmed {settled}/{warm['total']}, {warm['tokens_done']} tokens")
    if found.get("age_s") is not None:
        parts.append(f"for {found['age_s']:.0f} s")
    if found.get("eta_s") is not None:
        parts.append(f"about {found['eta_s']:.0f} s left")
    parts += _waiting(found)
    if found["state"] in ("paused", *ENDED_BADLY, "done") and found["reason"]:
        parts.append(found["reason"])
    elif found["waiting"]:
        parts.append(found["waiting"])
    return "  ".join(parts)


def _waiting(found: Mapping[str, Any]) -> Iterator[str]:
    """A part for each thing that turns wait for; of a service that does not tell them apart, one."""
    counted = found.get("turns_waiting_for") or {"engine": found.get("turns_waiting", 0)}
    for waits_for, turns in counted.items():
        if turns:
            yield f"{turns} turn{'s wait' if turns > 1 else ' waits'} for {WAITED_FOR.get(waits_for, waits_for)}"


def _steady(found: Mapping[str, Any]) -> str:
    """A line without what changes by the second."""
    waits = {"waiting": None} if found["state"] == "shifting" else {}
    counted = {name: min(1, turns) for name, turns in found.get("turns_waiting_for", {}).items()}
    some = {"turns_waiting": min(1, found.get("turns_waiting", 0)), "turns_waiting_for": counted}
    return line({**found, "age_s": None, "eta_s": None, **some, **waits})


def _asked(given: argparse.Namespace, call: Callable[[FleetClient], Any]) -> Any:
    with httpx.Client(trust_env=False) as http:
        return call(operator_api.fleet_client(given, http))
