"""What a script of tries of a client does: each against a running service, one line each; for whatever environment it runs in."""

import argparse
import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

Try = Callable[[str, str], Awaitable[str]]
"""Of a URL and a key; says what was seen, or raises."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(f"expected {what}")


def main(description: str | None, tries: tuple[Try, ...]) -> int:
    """1 if one fails, or there is no key."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument(
        "--keys", type=Path, default=Path(".everturn/keys.json"), help="as `make up` keeps them"
    )
    chosen = parser.parse_args()
    try:
        key = json.loads(chosen.keys.read_text("utf-8"))["tenant_key"]
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(
            f"clients: no tenant's key in {chosen.keys}: {error!r}. Start the stack with `make up`.\n"
        )
        return 1
    return asyncio.run(_all(chosen.url, key, tries))


async def _all(url: str, key: str, tries: tuple[Try, ...]) -> int:
    failed = False
    for attempt in tries:
        name = getattr(attempt, "__name__", repr(attempt))
        try:
            print(f"ok      {name}: {await attempt(url, key)}")
        except Exception:  # noqa: BLE001 whatever the client raises is the finding
            failed = True
            print(f"FAILED  {name}\n{traceback.format_exc()}")
    return int(failed)
