"""Starts the supervisor in the background, follows it until it is ready, and finds it again to stop it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from stack.errors import StackError
from stack.locks import lock_supervisor
from stack.placement import remove
from stack.ports import require_free_port

FOLLOW_S = 0.1
STOP_S = 120.0

WELCOME = """\
Everturn serves on {url}. Data: {data}. Logs: {data}/logs. Stop it with `make down`.
Tenant key, made at the first start: {key}

  curl -s {url}/v1/responses -H 'authorization: Bearer {key}' -H 'content-type: application/json' \\
    -d '{{"model": "production", "input": "What is the capital of France?", "temperature": 0}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="{key}")
  chat = client.conversations.create()
  answer = client.responses.create(
      model="production", conversation=chat.id, input="What is the capital of France?", temperature=0
  )
  print(answer.output_text)
"""


def up(data: Path, *, port: int, model: Path) -> int:
    if _supervisor(data) is not None:
        _welcome(data)
        return 0
    require_free_port(port, setting="EVERTURN_PORT")
    log = data / "logs" / "stack.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["--data", str(data), "--port", str(port), "--model", str(model.absolute())]
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "stack.supervisor", *arguments],
            cwd=Path(__file__).resolve().parent.parent,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _follow(log, data, child)
    except KeyboardInterrupt:
        os.kill(child.pid, signal.SIGTERM)
        child.wait()
        raise
    _welcome(data)
    return 0


def down(data: Path) -> int:
    pid = _supervisor(data)
    if pid is None:
        print(f"nothing runs in {data}")
        return 0
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while _supervisor(data) is not None:
        if time.monotonic() > deadline:
            raise StackError(
                f"the supervisor (pid {pid}) has not ended after {STOP_S:.0f} s; see {data}/logs/stack.log"
            )
        time.sleep(FOLLOW_S)
    print("stopped")
    return 0


def status(data: Path) -> int:
    pid = _supervisor(data)
    ready = data / "run" / "ready.json"
    if pid is None:
        print(f"nothing runs in {data}")
        return 0
    state = f"serves on {json.loads(ready.read_text())['url']}" if ready.exists() else "is starting"
    print(f"everturn (pid {pid}) {state}; logs in {data / 'logs'}")
    return 0


def clean(data: Path) -> int:
    down(data)
    if not data.exists():
        return 0
    for server in data.glob("**/postgres"), data.glob("**/valkey"):
        for folder in list(server):
            remove(folder)
    shutil.rmtree(data)
    print(f"deleted {data}")
    return 0


def _supervisor(data: Path) -> int | None:
    """The pid that holds the lock; None when it is free."""
    home = data / "run"
    if not home.is_dir():
        return None
    try:
        os.close(lock_supervisor(home))
    except StackError:
        holder = (home / "supervisor.lock").read_text().strip()
        if not holder.isdigit():
            raise
        return int(holder)
    return None


def _follow(log: Path, data: Path, child: subprocess.Popen[bytes]) -> None:
    """Copies the supervisor's lines until it is ready. Raises StackError with its last line when it ends first."""
    last = ""
    with log.open() as lines:
        while True:
            ended = child.poll() is not None
            while line := lines.readline():
                last = line.strip()
                if last not in ("ready", "") and not last.startswith("everturn: "):
                    print(last, flush=True)
            if (data / "run" / "ready.json").exists():
                return
            if ended:
                raise StackError(last.removeprefix("everturn: ") or f"the supervisor ended; see {log}")
            time.sleep(FOLLOW_S)


def _welcome(data: Path) -> None:
    ready = data / "run" / "ready.json"
    if not ready.exists():
        print("already starting; `make status` tells when it serves")
        return
    keys = json.loads((data / "keys.json").read_text())
    print(WELCOME.format(url=json.loads(ready.read_text())["url"], data=data, key=keys["tenant_key"]))
