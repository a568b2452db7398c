"""The control engine: vLLM on the new checkpoint, reading the same KV store without a guard."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import Signals

import httpx

from demo.reference import Reference
from stack.cores import usable
from stack.deployment import Deployment
from stack.errors import StackError
from stack.ports import LOOPBACK, find_free_port
from workers.child import Program
from workers.vllm_command import NOTHING_COMPILED
from workers.zygote_engine import ZygoteEngine

START_S = 180.0
STOP_S = 30.0


@contextmanager
def unguarded_engine(deployment: Deployment, model: Path, options: list[str]) -> Iterator[Reference]:
    port = find_free_port()
    program = Program(
        name="the control engine",
        argv=[*_arguments(deployment, model, port), *options],
        env=_environment(),
        log=deployment.logs / "engine-control.log",
        stop=((Signals.SIGTERM, STOP_S),),
    )
    engine = ZygoteEngine.start(deployment.zygote, program)
    try:
        reference = Reference(address=f"http://{LOOPBACK}:{port}")
        with deployment.progress.step(f"{program.name} loads {model.name}"):
            _wait(engine, reference)
        yield reference
    finally:
        engine.stop()


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
        # Without, vLLM kills its own processes, and their shared memory stays.
        *("--kv-cache-memory-bytes", str(256 * 2**20), "--enable-scale-out", "--shutdown-timeout", "5"),
        *("--kv-transfer-config", json.dumps(transfer)),
    ]


def _environment() -> dict[str, str]:
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    return {
        **NOTHING_COMPILED,
        **os.environ,
        **quiet,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(usable()[-1]),
    }


def _wait(engine: ZygoteEngine, reference: Reference) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{reference.address}/health", timeout=2, trust_env=False).is_success:
                return
        if engine.ended(within_s=0.1):
            raise StackError(f"{engine.program.name} ended ({engine.end_of()}): {engine.last_words()}")
    raise StackError(f"{engine.program.name} was not ready after {START_S:.0f} s: {engine.last_words()}")
