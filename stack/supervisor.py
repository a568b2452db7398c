"""The process that `everturn up` leaves in the background: holds the deployment until it is told to stop or a part dies."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from service.domain.errors import EverturnError
from stack.cores import all_usable
from stack.deployment import Deployment, EngineSpec
from stack.errors import StackError, unusable
from stack.locks import lock_supervisor
from stack.ports import find_free_port
from stack.progress import Progress
from workers.child import none_left

ALIAS = "production"
WATCH_S = 0.5


class Told(Exception):
    """SIGTERM or SIGINT came."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _tell)
    try:
        with none_left():
            _run(given.data, given.port, given.model)
    except Told:
        print("stopped", flush=True)
        return 0
    except (StackError, EverturnError) as error:
        print(f"everturn: {error}", flush=True)
        return 1
    except OSError as error:
        print(f"everturn: {unusable(error, given.data)}", flush=True)
        return 1
    return 0


def _run(data: Path, port: int, model: Path) -> None:
    home = data / "run"
    home.mkdir(parents=True, exist_ok=True)
    lock_supervisor(home)
    ready = home / "ready.json"
    ready.unlink(missing_ok=True)
    progress = Progress(stream=sys.stdout)
    with Deployment(data, port=port, progress=progress, environment=os.environ) as deployment:
        first = EngineSpec(name="first", model=model, port=find_free_port(), cores=all_usable())
        deployment.start_engine(first)
        _point_alias(deployment)
        said = {"pid": str(os.getpid()), "url": deployment.url, "port": str(port), "model": str(model)}
        fresh = ready.with_suffix(".new")
        fresh.write_text(json.dumps(said))
        fresh.replace(ready)
        print("ready", flush=True)
        try:
            while (dead := deployment.first_dead()) is None:
                time.sleep(WATCH_S)
        finally:
            ready.unlink()
        raise StackError(f"{dead}; everything was stopped, `make up` starts it again")


def _point_alias(deployment: Deployment) -> None:
    """Only a first start points it; afterwards it moves by an operator's choice alone."""
    aliases = deployment.admin("GET", "/aliases")["data"]
    if not aliases:
        engines = deployment.admin("GET", "/engines")["data"]
        revision = engines[0]["revision"] if isinstance(engines, list) else None
        deployment.admin("PUT", f"/aliases/{ALIAS}", {"revision": revision, "by": "first start"})


def _tell(_number: int, _frame: FrameType | None) -> None:
    raise Told


if __name__ == "__main__":
    sys.exit(main())
