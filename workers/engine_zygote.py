"""Imports vLLM once, then forks an API server per request, in seconds instead of a minute. Linux only.

`python -m workers.engine_zygote SOCKET` serves; `ZygoteEngine` asks. Every engine ends with whoever asked for it, and with
its zygote.
"""

import gc
import importlib
import json
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.tether import end_with_parent

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
REQUEST_PATIENCE_S = 5.0
NAP_S = 0.00005
"""Less than a hundredth of a step of the demo's model."""
ORPHAN_PATIENCE_S = 45.0
"""From SIGTERM to SIGKILL for an engine whose client is gone: longer than vLLM itself waits for requests."""


@dataclass(slots=True, kw_only=True)
class Engine:
    pid: int
    pidfd: int
    client: socket.socket
    kill_at: float | None = None


class Zygote:
    """One thread: nothing else may run where processes are forked."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._engines: list[Engine] = []

    def serve(self) -> None:
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ, self._accept)
                for engine in self._engines:
                    selector.register(engine.pidfd, selectors.EVENT_READ, lambda e=engine: self._ended(e))
                    if engine.kill_at is None:
                        selector.register(
                            engine.client, selectors.EVENT_READ, lambda e=engine: self._orphaned(e)
                        )
                ready = [key.data for key, _ in selector.select(self._next_kill_s())]
            for act in ready:
                act()
            self._kill_the_late()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        client.settimeout(REQUEST_PATIENCE_S)
        try:
            request = _parsed(_receive(client))
            engine = self._fork(request, client)
        except (OSError, ValueError) as error:
            with suppress(OSError), client:
                client.sendall(
                    json.dumps({"error": f"The zygote could not start an engine: {error}"}).encode()
                )
            return
        self._engines.append(engine)
        try:
            socket.send_fds(client, [json.dumps({"pid": engine.pid}).encode()], [engine.pidfd])
        except OSError as error:
            sys.stderr.write(f"The zygote's client went away: {error}\n")

    def _fork(self, request: dict[str, Any], client: socket.socket) -> Engine:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            client.close()
            self._listener.close()
            for other in self._engines:
                other.client.close()
                os.close(other.pidfd)
            _become_engine(request, zygote)
        return Engine(pid=pid, pidfd=os.pidfd_open(pid), client=client)

    def _orphaned(self, engine: Engine) -> None:
        """Its client says nothing more, so what can be read is the end of the connection."""
        if engine in self._engines:
            engine.kill_at = time.monotonic() + ORPHAN_PATIENCE_S
            signal.pidfd_send_signal(engine.pidfd, signal.SIGTERM)

    def _ended(self, engine: Engine) -> None:
        # Its leader is not reaped yet: the group's number cannot be another's.
        with suppress(ProcessLookupError):
            os.killpg(engine.pid, signal.SIGKILL)
        _, status = os.waitpid(engine.pid, 0)
        self._engines.remove(engine)
        os.close(engine.pidfd)
        with suppress(OSError), engine.client:
            engine.client.sendall(json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode())

    def _next_kill_s(self) -> float | None:
        times = [engine.kill_at for engine in self._engines if engine.kill_at is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _kill_the_late(self) -> None:
        for engine in self._engines:
            if engine.kill_at is not None and time.monotonic() >= engine.kill_at:
                engine.kill_at += ORPHAN_PATIENCE_S
                signal.pidfd_send_signal(engine.pidfd, signal.SIGKILL)


def main(path: Path) -> None:
    """Prints 'ready' once engines can be asked for."""
    for module in IMPORTED_ONCE:
        importlib.import_module(module)
    # Pages that the collector does not touch stay shared with every engine.
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        sys.stdout.write(READY)
        sys.stdout.flush()
        Zygote(listener).serve()


def _parsed(data: bytes) -> dict[str, Any]:
    request = json.loads(data)
    if not isinstance(request, dict) or set(request) != {"argv", "env", "log"}:
        raise ValueError("a request is an object of argv, env and log")
    return request


def _become_engine(request: dict[str, Any], zygote: int) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        end_with_parent(zygote, signal.SIGTERM)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["env"])
        _fork_workers()
        _nap_between_looks()
        _catch_up_with_environment()
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


def _nap_between_looks() -> None:
    """While they wait for each other, and for a second after, vLLM's core and worker look for the next message without a pause: each keeps a CPU."""
    queues = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
    vars(queues)["sched_yield"] = lambda: time.sleep(NAP_S)


def _catch_up_with_environment() -> None:
    """With what was read from the zygote's own, when torch was imported."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        torch.compiler.set_stance("force_eager")


def _receive(connection: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise ValueError("the request ends before its line does")
        data += chunk
        if len(data) > MAX_REQUEST_BYTES:
            raise ValueError("the request is too long")
    return bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
