"""One real vLLM engine with Everturn in it, or with another connector, and a stopwatch at its door."""

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from service.domain.artifact import BootId
from stack.ports import find_free_port
from workers.child import Child, Program
from workers.engine_options import EngineOptions
from workers.vllm_command import vllm_command
from workers.zygote_engine import ZygoteEngine

START_TIMEOUT_S = 180.0
KV_CACHE_BYTES = 1 << 30
TENANT = "bench"
TRACED = {"kv_connector": "TracedConnector", "kv_connector_module_path": "bench.traced_connector"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    first_token_s: float
    total_s: float
    tokens: tuple[int, ...]
    evidence: dict[str, Any]

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (len(self.tokens) - 1) / (self.total_s - self.first_token_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchEngine:
    url: str
    process: ZygoteEngine = field(repr=False)
    http: httpx.Client = field(repr=False)

    def ask(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 2,
        offer: str | None = None,
        publish: str | None = None,
        params: Mapping[str, Any] | None = None,
        settle: bool = True,
        salt: str | None = None,
    ) -> Timed:
        """Streams greedily; waits until a publication has settled, unless told not to.

        `params` are another connector's, or none: `{}`. Requests of one `salt` find each other's KV in the engine's own prefix cache;
        without one a request finds nothing there.
        """
        attempt = f"att_{secrets.token_hex(6)}"
        ours = {"everturn": {"attempt": attempt, "tenant": TENANT, "offer": offer, "publish": publish}}
        body: dict[str, Any] = {
            "token_ids": prompt,
            "sampling_params": {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True},
            "stream": True,
            "cache_salt": salt or secrets.token_hex(8),
            "kv_transfer_params": ours if params is None else dict(params),
        }
        tokens: list[int] = []
        first = 0.0
        began = time.perf_counter()
        with self.http.stream("POST", f"{self.url}/inference/v1/generate", json=body) as stream:
            stream.raise_for_status()
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                got = json.loads(line[6:])["choices"][0]["token_ids"] or ()
                if got and not tokens:
                    first = time.perf_counter() - began
                tokens += got
        total = time.perf_counter() - began
        evidence = self._evidence(attempt) if params is None and settle else {}
        return Timed(first_token_s=first, total_s=total, tokens=tuple(tokens), evidence=evidence)

    def _evidence(self, attempt: str) -> dict[str, Any]:
        answer = self.http.get(f"{self.url}/everturn/attempts/{attempt}", params={"wait_s": 30})
        return dict(answer.raise_for_status().json())


@dataclass(frozen=True, slots=True)
class Zygote:
    path: Path
    folder: Path

    @contextmanager
    def engine(
        self,
        model: Path,
        store: Path,
        *,
        kv_transfer: Mapping[str, Any] | None = None,
        bare: bool = False,
        traced: bool = False,
    ) -> Iterator[BenchEngine]:
        """Ours; with `kv_transfer` another connector's; `bare` none at all; `traced` ours with clocks in it."""
        options = _options(model, store, self.folder / secrets.token_hex(4))
        options.own_dir.mkdir(parents=True)
        command = vllm_command(options, BootId(f"boot_{secrets.token_hex(8)}"), dict(os.environ))
        arguments = list(command.arguments)
        at = arguments.index("--kv-transfer-config")
        if bare:
            del arguments[at : at + 2]
        elif kv_transfer is not None:
            arguments[at + 1] = json.dumps(dict(kv_transfer))
        elif traced:
            arguments[at + 1] = json.dumps(json.loads(arguments[at + 1]) | TRACED)
        if bare or kv_transfer is not None:
            at = arguments.index("--middleware")
            del arguments[at : at + 2]
        program = Program(name="engine", argv=arguments, env=command.env, log=options.log)
        process = ZygoteEngine.start(self.path, program)
        with httpx.Client(timeout=120, trust_env=False) as http:
            engine = BenchEngine(url=options.local_address, process=process, http=http)
            try:
                _wait_until_up(engine, options.log)
                yield engine
            finally:
                process.stop()


@contextmanager
def zygote(folder: Path) -> Iterator[Zygote]:
    path, log = folder / "z.sock", folder / "zygote.log"
    env = dict(os.environ) | {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    argv = [sys.executable, "-m", "workers.engine_zygote", str(path)]
    child = Child.start(Program(name="zygote", argv=argv, env=env, log=log))
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(path):
            if child.exit_status() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the zygote did not start: {log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield Zygote(path, folder)
    finally:
        child.stop()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(os.fsencode(path)) == 0


def _options(model: Path, store: Path, run_dir: Path) -> EngineOptions:
    port = find_free_port()
    options = EngineOptions.parse(
        [
            *("--model", str(model), "--served-model-name", "bench", "--port", str(port)),
            *("--api", "http://127.0.0.1:1", "--key-file", "none", "--store", str(store)),
            *("--run-dir", str(run_dir), "--kv-cache-memory-bytes", str(KV_CACHE_BYTES)),
        ]
    )
    return replace(options, shutdown_timeout_s=0)


def _wait_until_up(engine: BenchEngine, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and engine.process.exit_status() is None:
        with suppress(httpx.TransportError):
            if engine.http.get(f"{engine.url}/health").is_success:
                return
        time.sleep(0.1)
    raise SystemExit(f"the engine did not come up:\n{log.read_text()[-3000:]}")
