"""The control engine: vLLM on the new checkpoint, reading the same KV store without a guard."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from demo.reference import Reference
from stack.deployment import Deployment
from stack.errors import StackError
from stack.ports import LOOPBACK, find_free_port
from stack.process import last_meaningful_line
from workers.engine_zygote import start_engine

START_S = 180.0
STOP_S = 30.0


@contextmanager
def unguarded_engine(deployment: Deployment, model: Path, options: list[str]) -> Iterator[Reference]:
    port = find_free_port()
    log = deployment.logs / "engine-control.log"
    pid = start_engine(
        deployment.zygote, [*_arguments(deployment, model, port), *options], _environment(), log
    )
    try:
        reference = Reference(address=f"http://{LOOPBACK}:{port}")
        _wait(pid, reference, log)
        yield reference
    finally:
        _stop(pid)


def _arguments(deployment: Deployment, model: Path, port: int) -> list[str]:
    transfer = {
        "kv_connector": "UnguardedConnector",
        "kv_connector_module_path": "demo.unguarded",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {
            "store": str(deployment.kv),
            "hash_cache": str(deployment.data / "run"),
        },
    }
    return [
        *("--model", str(model), "--served-model-name", "chat", "--host", LOOPBACK, "--port", str(port)),
        *("--dtype", "float32", "--block-size", "32", "--max-model-len", "4096", "--enforce-eager"),
        *("--kv-cache-memory-bytes", str(256 * 2**20), "--enable-scale-out"),
        *("--kv-transfer-config", json.dumps(transfer)),
    ]


def _environment() -> dict[str, str]:
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    return {**os.environ, **quiet, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "1"}


def _wait(pid: int, reference: Reference, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{reference.address}/health", timeout=2).is_success:
                return
        if not _alive(pid):
            raise StackError(
                f"the control engine ended: {last_meaningful_line(log.read_text())} (log: {log})"
            )
        time.sleep(0.1)
    raise StackError(f"the control engine was not ready after {START_S:.0f} s (log: {log})")


def _stop(pid: int) -> None:
    deadline = time.monotonic() + STOP_S
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while _alive(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    """The zygote reaps it, so it is gone as soon as it has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
