"""Starts the supervisor in the background, follows it until it is ready, and finds it again to stop it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO
from urllib.request import getproxies, proxy_bypass

from service.domain.errors import InvalidInput
from stack.errors import StackError
from stack.locks import lock_supervisor
from stack.placement import remove
from stack.ports import LOOPBACK, require_free_port
from workers.checkpoint_check import require_whole

FOLLOW_S = 0.1
STOP_S = 120.0
MARKS = ("run/supervisor.lock", "checkpoints/.lock", "logs/stack.log")
"""Any of them makes a folder ours to delete."""

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
    pid = _supervisor(data)
    if pid is not None:
        return _already(data, pid, port=port, model=model)
    require_free_port(port, setting="EVERTURN_PORT")
    try:
        require_whole(model)
    except InvalidInput as error:
        raise StackError(f"--model (EVERTURN_MODEL): {error}") from error
    log = data / "logs" / "stack.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    # A kill of `up` alone shall not leave half a start behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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
    with log.open() as lines:
        try:
            _follow(lines, data, child)
        except KeyboardInterrupt:
            os.kill(child.pid, signal.SIGTERM)
            while child.poll() is None:
                _copy(lines)
                time.sleep(FOLLOW_S)
            print("everturn: interrupted; nothing runs any more", file=sys.stderr)
            return 130
    _welcome(data, _ready(data, child.pid))
    return 0


def down(data: Path) -> int:
    pid = _supervisor(data)
    if pid is None:
        print(f"nothing runs in {data}")
        return 0
    deadline = time.monotonic() + STOP_S
    with (data / "logs" / "stack.log").open() as lines:
        lines.seek(0, os.SEEK_END)
        os.kill(pid, signal.SIGTERM)
        while _supervisor(data) is not None:
            if time.monotonic() > deadline:
                raise StackError(
                    f"the supervisor (pid {pid}) has not ended after {STOP_S:.0f} s; see {data}/logs/stack.log"
                )
            _copy(lines)
    print("stopped")
    return 0


def status(data: Path) -> int:
    pid = _supervisor(data)
    if pid is None:
        print(f"nothing runs in {data}")
        return 0
    ready = _ready(data, pid)
    state = f"serves on {ready['url']}" if ready else "is starting"
    print(f"everturn (pid {pid}) {state}; logs in {data / 'logs'}")
    return 0


def clean(data: Path) -> int:
    down(data)
    if not data.exists():
        return 0
    if not any((data / mark).exists() for mark in MARKS):
        raise StackError(
            f"{data} holds no data of Everturn: nothing was deleted; name its own folder with --data"
        )
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


def _ready(data: Path, pid: int) -> dict[str, str] | None:
    """What this supervisor said when all was up; a killed one left its own behind."""
    try:
        said: dict[str, str] = json.loads((data / "run" / "ready.json").read_text())
    except FileNotFoundError:
        return None
    return said if said["pid"] == str(pid) else None


def _already(data: Path, pid: int, *, port: int, model: Path) -> int:
    ready = _ready(data, pid)
    if ready is None:
        print("already starting; `make status` tells when it serves")
        return 0
    if (ready["port"], ready["model"]) != (str(port), str(model.absolute())):
        raise StackError(
            f"already serves {ready['model']} on {ready['url']}: `make down` first, then start it with what you gave"
        )
    _welcome(data, ready)
    return 0


def _follow(lines: TextIO, data: Path, child: subprocess.Popen[bytes]) -> None:
    """Copies the supervisor's lines until it is ready. Raises StackError with its last line when it ends first."""
    last = ""
    while True:
        ended = child.poll() is not None
        last = _copy(lines) or last
        if _ready(data, child.pid) is not None:
            return
        if ended:
            raise StackError(last.removeprefix("everturn: ") or f"the supervisor ended; see {lines.name}")
        time.sleep(FOLLOW_S)


def _copy(lines: TextIO) -> str:
    """Shows what the supervisor has said meanwhile; returns its last line."""
    last = ""
    while line := lines.readline():
        last = line.strip()
        if last not in ("ready", "stopped", "") and not last.startswith("everturn: "):
            print(last, flush=True)
    return last


def _around_the_proxy() -> str | None:
    """What to export where clients would send to a proxy what is meant for this machine."""
    proxies = getproxies()
    if not {"http", "all"} & proxies.keys() or proxy_bypass(LOOPBACK):
        return None
    spared = shlex.quote(",".join(filter(None, (LOOPBACK, "localhost", proxies.get("no")))))
    return f"Your environment names a proxy; before you call this: export no_proxy={spared} NO_PROXY={spared}"


def _welcome(data: Path, ready: dict[str, str] | None) -> None:
    if ready is None:
        raise StackError(f"it ended as soon as it served; see {data}/logs/stack.log")
    keys = json.loads((data / "keys.json").read_text())
    print(WELCOME.format(url=ready["url"], data=data, key=keys["tenant_key"]))
    if line := _around_the_proxy():
        print(line)
