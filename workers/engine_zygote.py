"""Imports vLLM once, then forks an API server per request, in seconds instead of a minute. Linux only.

`python -m workers.engine_zygote SOCKET` serves; `start_engine` asks. Every engine dies with its zygote.
"""

import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

API_SERVER = "vllm.entrypoints.launchers.api_server.entry"
IMPORTED_ONCE: tuple[str, ...] = (
    API_SERVER,
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
    "workers.kv_connector.connector",
    "workers.kv_connector.middleware",
)
READY = "ready\n"
MAX_REQUEST_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1


def start_engine(path: Path, argv: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """The pid of a new vLLM API server, the leader of its own session.

    Args:
        path: the zygote's socket.
        argv: arguments of vLLM's API server.
        env: the engine's whole environment.
        log: where its output is appended.

    Raises:
        OSError: there is no zygote at `path`, or it could not fork.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        request = {"argv": list(argv), "env": dict(env), "log": str(log)}
        client.sendall(json.dumps(request).encode())
        client.shutdown(socket.SHUT_WR)
        answer = json.loads(_receive(client))
    if "error" in answer:
        raise OSError(answer["error"])
    return int(answer["pid"])


def main(path: Path) -> None:
    """Prints 'ready' once engines can be asked for."""
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    # Pages that the collector does not touch stay shared with every engine.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, _reap)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        sys.stdout.write(READY)
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            with connection:
                _serve(connection, listener)


def _serve(connection: socket.socket, listener: socket.socket) -> None:
    try:
        request = _parsed(_receive(connection))
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_engine(request, zygote, (connection, listener))
        answer: dict[str, Any] = {"pid": pid}
    except (OSError, ValueError) as error:
        answer = {"error": f"The zygote could not start an engine: {error}"}
    try:
        connection.sendall(json.dumps(answer).encode())
    except OSError as error:
        sys.stderr.write(f"The zygote's client went away: {error}\n")


def _parsed(data: bytes) -> dict[str, Any]:
    request = json.loads(data)
    if not isinstance(request, dict) or set(request) != {"argv", "env", "log"}:
        raise ValueError("a request is an object of argv, env and log")
    return request


def _become_engine(request: dict[str, Any], zygote: int, inherited: Sequence[socket.socket]) -> None:
    """Never returns."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _die_with(zygote)
        for each in inherited:
            each.close()
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["env"])
        _fork_workers()
        sys.argv = [API_SERVER, *request["argv"]]
        importlib.import_module(API_SERVER).main()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # noqa: BLE001 the child must not run on as a second zygote
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _fork_workers() -> None:
    """The CPU platform insists on spawn, whatever is set, and each process would import everything anew."""
    system_utils = importlib.import_module("vllm.utils.system_utils")
    chosen = system_utils.get_mp_context
    for module in list(sys.modules.values()):
        if vars(module).get("get_mp_context") is chosen:
            vars(module)["get_mp_context"] = lambda: multiprocessing.get_context("fork")
    # OpenMP read its environment when torch was imported.
    torch = importlib.import_module("torch")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


def _reap(_signal: int, _frame: object) -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _receive(connection: socket.socket) -> bytes:
    data = bytearray()
    while chunk := connection.recv(1 << 16):
        data += chunk
        if len(data) > MAX_REQUEST_BYTES:
            raise ValueError("the request is too long")
    return bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
