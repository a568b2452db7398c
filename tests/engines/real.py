"""Real vLLM engines for the whole session: one zygote imports vLLM once, and each engine is up seconds later."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.domain.artifact import ArtifactId, BootId
from service.domain.evidence import Evidence, KvRequest
from service.domain.plan import EngineRole
from stack.ports import find_free_port
from tests.engines.checkpoints import TinyModel
from workers.child import Program
from workers.engine_options import EngineOptions
from workers.named_memory import NamedMemory
from workers.vllm_command import vllm_command, with_private_adapters
from workers.zygote_engine import ZygoteEngine

START_TIMEOUT_S = 120.0
TENANT = "tenant_a"
BLOCK = 32
SWITCHED_OFF = "tests.engines.switched_off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    document: dict[str, Any]
    evidence: Evidence | None

    @property
    def tokens(self) -> list[int]:
        return list(self.document["choices"][0]["token_ids"])

    @property
    def logprobs(self) -> list[float]:
        return [token["logprob"] for token in self.document["choices"][0]["logprobs"]["content"]]

    @property
    def known(self) -> Evidence:
        assert self.evidence is not None
        return self.evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class RealEngine:
    url: str
    boot: BootId
    process: ZygoteEngine = field(repr=False)
    memory: NamedMemory = field(repr=False)
    store: Path
    run_dir: Path
    http: httpx.Client = field(repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def identity(self) -> dict[str, Any]:
        return dict(self.http.get(f"{self.url}/everturn/identity").raise_for_status().json())

    @property
    def revision(self) -> str:
        return str(self.identity["revision"])

    def generate(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 8,
        tenant: str = TENANT,
        offer: object = None,
        publish: str | None = None,
        lease_s: int = 3600,
        contract: object = None,
        ignore_eos: bool = False,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Reply:
        """Greedy, with log-probabilities; waits until a publication has settled."""
        attempt = f"att_{secrets.token_hex(6)}"
        kv = KvRequest(
            attempt=attempt, tenant=tenant, publish=ArtifactId(publish) if publish else None, lease_s=lease_s
        )
        params = kv.to_params()
        params["everturn"] |= {"offer": offer, "contract": contract}
        body = {
            "token_ids": prompt,
            "sampling_params": {
                "max_tokens": max_tokens,
                "temperature": 0,
                "logprobs": 5,
                "ignore_eos": ignore_eos,
            },
            "kv_transfer_params": params,
        }
        response = self.http.post(f"{self.url}/inference/v1/generate", json=body | more, headers=headers)
        return Reply(
            status=response.status_code,
            document=dict(response.json()),
            evidence=self.evidence(attempt, wait_s=10 if response.status_code == httpx.codes.OK else 0),
        )

    def cold(self, prompt: list[int], **more: Any) -> Reply:
        """On nothing stored, neither in the store nor in the engine's own prefix cache."""
        return self.generate(prompt, cache_salt=secrets.token_hex(8), **more)

    def evidence(self, attempt: str, *, wait_s: float = 0.0) -> Evidence | None:
        answer = self.http.get(f"{self.url}/everturn/attempts/{attempt}", params={"wait_s": wait_s})
        return None if answer.status_code == httpx.codes.NOT_FOUND else Evidence.from_json(answer.json())

    def render(self, messages: list[dict[str, str]], carried: dict[str, int] | None = None) -> httpx.Response:
        return self.http.post(f"{self.url}/everturn/render", json={"messages": messages, "carried": carried})

    def is_healthy(self) -> bool:
        return self.http.get(f"{self.url}/health").is_success


StartEngine = Callable[..., RealEngine]


class EngineHall:
    """Starts engines, keeps those that tests share, and ends them all with the session."""

    def __init__(self, folder: Path, zygote: Path, scratch: Mapping[str, str]) -> None:
        self._folder = folder
        self._zygote = zygote
        self._scratch = scratch
        # vLLM closes a connection that is idle for 5 s: one kept as long could be closed as a request goes out.
        self._http = httpx.Client(timeout=60, trust_env=False, limits=httpx.Limits(keepalive_expiry=2))
        self._shared: dict[tuple[Path, Path, tuple[str, ...]], RealEngine] = {}
        self._running: list[RealEngine] = []

    def shared(self, model: Path, store: Path, *extra: str) -> RealEngine:
        key = (model, store, extra)
        if key not in self._shared:
            self._shared[key] = self.start(model, store, *extra)
        return self._shared[key]

    def start(
        self,
        model: Path,
        store: Path | str,
        *extra: str,
        env: Mapping[str, str] | None = None,
        kv_load_failure_policy: str = "fail",
        behind: Mapping[str, Any] | None = None,
        instead: Mapping[str, Any] | None = None,
        connector: str | None = None,
        middleware: str | None = None,
        contracts: Path | None = None,
        adapters: Mapping[str, Path] | None = None,
        weights: str | None = None,
    ) -> RealEngine:
        """What is other than in production:

        `behind`, `instead`: another connector's config, beside ours in vLLM's MultiConnector, or in its place.
        `weights`: their digest before they are loaded, as the launcher has it.
        `connector`, `middleware`: names of classes in tests.engines.switched_off, in the place of ours; or a connector's with its module.
        """
        options = _options(model, store, self._folder / secrets.token_hex(4), find_free_port(), extra)
        options = replace(options, contracts=contracts, adapters=tuple((adapters or {}).items()))
        options.own_dir.mkdir(parents=True)
        options = with_private_adapters(options)
        boot = BootId(f"boot_{secrets.token_hex(8)}")
        command = vllm_command(options, boot, dict(os.environ), weights=weights)
        arguments = list(command.arguments)
        at = arguments.index("--kv-transfer-config") + 1
        transfer = json.loads(arguments[at]) | {"kv_load_failure_policy": kv_load_failure_policy}
        if connector is not None:
            module, _, name = connector.rpartition(".")
            transfer |= {"kv_connector": name, "kv_connector_module_path": module or SWITCHED_OFF}
        if middleware is not None:
            arguments[arguments.index("--middleware") + 1] = f"{SWITCHED_OFF}.{middleware}"
        arguments[at] = json.dumps(instead or (_both(transfer, behind) if behind else transfer))
        program = Program(
            name="engine",
            argv=arguments,
            env=dict(command.env) | dict(self._scratch) | dict(env or {}),
            log=options.log,
        )
        process = ZygoteEngine.start(self._zygote, program)
        engine = RealEngine(
            url=options.local_address,
            boot=boot,
            process=process,
            memory=NamedMemory(process.pid),
            store=Path(store),
            run_dir=options.own_dir,
            http=self._http,
        )
        self._running.append(engine)
        self._wait_until_up(engine)
        engine.memory.look()
        return engine

    def stop(self, engine: RealEngine) -> None:
        self._running.remove(engine)
        self._shared = {key: kept for key, kept in self._shared.items() if kept is not engine}
        engine.process.stop()
        engine.memory.drop()

    def close(self) -> None:
        for engine in list(self._running):
            self.stop(engine)
        self._http.close()

    def _wait_until_up(self, engine: RealEngine) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and not engine.process.ended(within_s=0.1):
            with suppress(httpx.TransportError):
                if engine.is_healthy():
                    return
        pytest.fail(f"the engine did not come up:\n{engine.process.log_tail()[-4000:]}")


@pytest.fixture(scope="session")
def engine_scratch() -> Iterator[dict[str, str]]:
    """The environment by which sockets and rendezvous files, which a killed engine leaves behind, go with the session.

    Not below pytest's own folders: a socket's path has 107 bytes.
    """
    with tempfile.TemporaryDirectory(prefix="evt-", ignore_cleanup_errors=True) as folder:
        yield {"TMPDIR": folder}


@pytest.fixture(scope="session")
def engine_zygote(tmp_path_factory: pytest.TempPathFactory, engine_scratch: dict[str, str]) -> Iterator[Path]:
    """Its socket."""
    folder = tmp_path_factory.mktemp("zygote")
    path = folder / "z.sock"
    with (folder / "zygote.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.engine_zygote", str(path)],
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(os.environ) | {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "WARNING"} | engine_scratch,
        )
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        pytest.fail(f"the zygote did not come up:\n{(folder / 'zygote.log').read_text()[-4000:]}")
    yield path
    process.terminate()
    process.communicate()


@pytest.fixture(scope="session")
def engine_hall(
    engine_zygote: Path, engine_scratch: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineHall]:
    hall = EngineHall(tmp_path_factory.mktemp("engines"), engine_zygote, engine_scratch)
    yield hall
    hall.close()


@pytest.fixture(scope="session")
def kv_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, as several engines share it."""
    return tmp_path_factory.mktemp("kv")


@pytest.fixture(scope="session")
def tiny_v12(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return TinyModel().write(tmp_path_factory.mktemp("tiny") / "v12")


@pytest.fixture(scope="session")
def tiny_v13(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of identical shape and tokenizer; every matrix moved by a tenth of its standard deviation."""
    return TinyModel(sigma=0.1).write(tmp_path_factory.mktemp("tiny") / "v13")


@pytest.fixture(scope="session")
def v12_engine(engine_hall: EngineHall, tiny_v12: Path, kv_store: Path) -> RealEngine:
    return engine_hall.shared(tiny_v12, kv_store)


@pytest.fixture(scope="session")
def second_v12_engine(
    engine_hall: EngineHall, tiny_v12: Path, kv_store: Path, v12_engine: RealEngine
) -> RealEngine:
    """Another process of the same revision."""
    return engine_hall.shared(tiny_v12, kv_store, "--served-model-name", "another")


@pytest.fixture(scope="session")
def v13_engine(engine_hall: EngineHall, tiny_v13: Path, kv_store: Path) -> RealEngine:
    return engine_hall.shared(tiny_v13, kv_store)


def new_handle() -> str:
    return f"kv_{secrets.token_hex(12)}"


def _options(
    model: Path, store: Path | str, run_dir: Path, port: int, extra: tuple[str, ...]
) -> EngineOptions:
    return EngineOptions(
        model=model,
        served_name="chat",
        host="127.0.0.1",
        port=port,
        address=f"http://127.0.0.1:{port}",
        role=EngineRole.BOTH,
        api="http://127.0.0.1:1",
        key_file=run_dir / "none",
        store=str(store),
        run_dir=run_dir,
        expect=None,
        zygote=None,
        threads=1,
        cores=None,
        kv_cache_bytes=32 << 20,
        start_timeout_s=START_TIMEOUT_S,
        drain_timeout_s=5.0,
        shutdown_timeout_s=0,
        extra=extra,
    )


def _both(ours: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    connectors = {"connectors": [ours, theirs]}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": connectors}
