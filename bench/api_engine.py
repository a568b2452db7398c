"""A simulated engine in a process of its own: prints where it is and what it is, and serves until its input ends."""

import json
import sys

from tests.engines.simulated import SimulatedEngine, Stored


def main(pause_s: float) -> None:
    """Args: pause_s: between words."""
    store: dict[str, Stored] = {}
    with SimulatedEngine("a", store) as engine:
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
