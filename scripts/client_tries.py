"""What a script of tries of a client does: each against a running service, one line each; for whatever environment it runs in."""

import argparse
import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = ("What is the capital of France?", "And of Italy?", "Say it again.")
MODEL = "production"
LIMIT = 48
"""Tokens of an answer: a small model may not find its end."""
WEATHER = "sunny"


@dataclass(frozen=True, kw_only=True)
class Service:
    url: str
    key: str
    calls: str
    """An alias whose model calls a tool that it is given, and then speaks; empty where there is none."""


Try = Callable[[Service], Awaitable[str]]
"""Says what was seen, or raises."""


def require(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(f"expected {what}")


def require_equal(found: object, wanted: object, what: str) -> None:
    require(found == wanted, f"{what} to be {wanted!r}, not {found!r}")


def main(description: str | None, tries: tuple[Try, ...], calling: tuple[Try, ...]) -> int:
    """1 if one fails, or there is no key. `calling` need an alias that --calls names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument(
        "--keys", type=Path, default=Path(".everturn/keys.json"), help="as `make up` keeps them"
    )
    parser.add_argument(
        "--calls", default="", metavar="ALIAS", help="whose model calls a tool that it is given"
    )
    chosen = parser.parse_args()
    try:
        key = json.loads(chosen.keys.read_text("utf-8"))["tenant_key"]
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(
            f"clients: no tenant's key in {chosen.keys}: {error!r}. Start the stack with `make up`.\n"
        )
        return 1
    service = Service(url=chosen.url, key=key, calls=chosen.calls)
    if not service.calls:
        for attempt in calling:
            print(f"skipped {attempt.__name__}: no model that calls tools is named (--calls ALIAS)")
        calling = ()
    return asyncio.run(_all(service, (*tries, *calling)))


async def _all(service: Service, tries: tuple[Try, ...]) -> int:
    failed = False
    for attempt in tries:
        try:
            print(f"ok      {attempt.__name__}: {await attempt(service)}")
        except Exception:  # noqa: BLE001 whatever the client raises is the finding
            failed = True
            print(f"FAILED  {attempt.__name__}\n{traceback.format_exc()}")
    return int(failed)
