"""A supervisor to be killed: starts one server, prints its pid and URL, and serves until its input ends."""

import json
import sys
from pathlib import Path

from stack.errors import StackError
from stack.placement import SHELTER
from stack.postgres import EmbeddedPostgres
from stack.valkey import EmbeddedValkey


def main(kind: str, directory: Path, shelter: Path = SHELTER) -> int:
    made = EmbeddedPostgres if kind == "postgres" else EmbeddedValkey
    server = made(directory, shelter=shelter)
    try:
        with server:
            print(json.dumps({"pid": server.child.pid, "url": server.url()}), flush=True)  # noqa: T201
            sys.stdin.read()
    except StackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(Path, sys.argv[2:])))
