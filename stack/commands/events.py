"""`everturn events export`: the log as JSON lines, in the one order in which every reader sees it."""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from service.store.feed import Cursor, read_lag, read_page, to_json
from stack import database
from stack.commands.parsers import Commands
from stack.errors import StackError

PAGE_EVENTS = 500


def add(commands: Commands) -> None:
    events = commands.add_parser("events", help="read the log of events")
    actions = events.add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser("export", help="as JSON lines", description=__doc__)
    database.add_argument(export)
    export.add_argument("--after", metavar="CURSOR", help="of the last event that you have")
    export.add_argument("--content", action="store_true", help="with the words and token ids")
    export.add_argument("--out", type=Path, metavar="FILE", help="default: standard output")
    export.set_defaults(run=_export)


def _export(given: argparse.Namespace) -> int:
    """Each page is a query of its own: an export of any length holds no snapshot."""
    cursor = Cursor.parse(given.after) if given.after else Cursor()
    count = 0
    with _opened(given.out) as out:
        while True:
            with database.connected(given) as conn:
                page = read_page(conn, after=cursor, limit=PAGE_EVENTS, contents=given.content)
            for event in page:
                out.write(json.dumps(to_json(event), separators=(",", ":")) + "\n")
            count += len(page)
            if not page:
                break
            cursor = page[-1].cursor
    with database.connected(given) as conn:
        lag = read_lag(conn)
    held = f"; {lag.waiting} held back by a transaction that still runs" if lag.waiting else ""
    print(f"{count} events; go on later with --after {cursor}{held}", file=sys.stderr)
    return 0


@contextmanager
def _opened(path: Path | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        return
    try:
        with path.open("x", encoding="ascii") as file:
            yield file
    except FileExistsError as error:
        raise StackError(f"{path} exists: name another file for the export") from error
