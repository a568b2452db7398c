"""The store's and the flows' state machines, for longer than CI has time for. `python -m bench.machines [EXAMPLES]`."""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine

from service.store.connection import make_engine
from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres
from tests.flows.test_turn_machine import check_flows
from tests.store.test_store_machine import check_store

MACHINES: dict[str, Callable[[Engine, int], None]] = {
    "store": lambda engine, examples: check_store(engine, examples=examples, steps=30),
    "flows": lambda engine, examples: check_flows(engine, examples=examples, steps=40),
}


def main(examples: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="everturn-machines-"))
    folder.chmod(0o711)
    took: dict[str, float] = {}
    try:
        with EmbeddedPostgres(folder / "postgres", durable=False) as server:
            upgrade(server.url())
            engine = make_engine(server.url(), application_name="machines", pool_size=5)
            for name, check in MACHINES.items():
                began = time.monotonic()
                check(engine, examples)
                took[name] = round(time.monotonic() - began, 1)
            engine.dispose()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"examples": examples, "seconds": took}))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
