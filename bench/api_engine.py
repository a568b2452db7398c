"""A simulated engine in a process of its own: prints where it is and what it is, and serves until its input ends."""

import json
import sys
from typing import Any, TypeVar

from tests.engines.simulated import SimulatedEngine, Stored

Value = TypeVar("Value")
KEPT = 5000
"""Attempts: those before them have ended long since. The longest run has twenty times as many."""


class Newest(dict[str, Value]):
    """What was put in first goes first."""

    def __setitem__(self, key: str, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > KEPT:
            del self[next(iter(self))]


class Nothing(list[Any]):
    """What tests look at, and nobody here."""

    def append(self, _: Any) -> None:
        pass


def main(pause_s: float) -> None:
    """Args: pause_s: between words."""
    with SimulatedEngine("a", Newest[Stored]()) as engine:
        engine.prompts, engine.requests = Nothing(), Nothing()
        engine._evidence = Newest()  # noqa: SLF001 of attempts that are over it keeps none here
        engine.faults.pause_s = pause_s
        told = {
            "boot": engine.boot,
            "address": engine.address,
            "descriptor": engine.descriptor.to_json(),
            "revision": engine.revision,
        }
        print(json.dumps(told), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(float(sys.argv[1]))
