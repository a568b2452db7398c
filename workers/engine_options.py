"""What a person asks of the engine launcher, checked before anything is started."""

import argparse
import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from service.domain.canary import compared_tokens
from service.domain.errors import InvalidInput
from service.domain.plan import EngineRole
from service.domain.revision import RevisionDigest, parse_digest
from workers.kv_connector.store_address import HELP, full_address, open_store

LARGEST_PORT = 65535
EVERY_INTERFACE = "0.0.0.0"  # noqa: S104 what a person may give


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """All paths are absolute: the engine may run in another folder."""

    model: Path
    served_name: str
    host: str
    port: int
    address: str
    """Where the service reaches it; with `host` a wildcard, not where it binds."""
    role: EngineRole
    api: str
    key_file: Path
    store: str
    """A folder, or s3://BUCKET/PREFIX."""
    run_dir: Path
    expect: RevisionDigest | None
    canary: str | None = None
    """off, exact or prefix:N; None: by what the engine computes in."""
    paranoid: bool = False
    """Read every byte of weights again, whatever is known of them."""
    zygote: Path | None
    threads: int
    cores: str | None
    kv_cache_bytes: int | None
    """None leaves it to what suits the platform."""
    start_timeout_s: float
    drain_timeout_s: float
    shutdown_timeout_s: int
    adapters: tuple[tuple[str, Path], ...] = ()
    """By the names that requests call them. vLLM is only given private copies of them."""
    contracts: Path | None = None
    """Folder of the compatibility contracts that the engine honours; None: it honours none."""
    extra: tuple[str, ...]
    """Handed to vLLM after our own arguments: the last one wins."""

    @property
    def name(self) -> str:
        """As in messages."""
        return f"engine {self.served_name} on port {self.port}"

    @property
    def local_address(self) -> str:
        """Where the launcher itself reaches it."""
        return f"http://{'127.0.0.1' if self.host == EVERY_INTERFACE else self.host}:{self.port}"

    @property
    def own_dir(self) -> Path:
        """Of this engine alone, unlike the run folder."""
        return self.run_dir / str(self.port)

    @property
    def log(self) -> Path:
        return self.own_dir / "engine.log"

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Self:
        """Raises:
        InvalidInput: naming the option.
        SystemExit: from argparse, for what it knows to be wrong.
        """
        ours, extra = _split(argv)
        given = _parser().parse_args(ours)
        return cls(
            model=given.model.absolute(),
            served_name=given.served_model_name,
            host=given.host,
            port=given.port,
            address=(given.address or f"http://{given.host}:{given.port}").rstrip("/"),
            role=EngineRole(given.role),
            api=given.api.rstrip("/"),
            key_file=given.key_file.absolute(),
            store=_store_address(given.store),
            run_dir=given.run_dir.absolute(),
            expect=None if given.expect is None else parse_digest(given.expect, "--expect"),
            canary=_canary(given.canary),
            paranoid=given.paranoid,
            zygote=None if given.zygote is None else given.zygote.absolute(),
            threads=given.threads,
            cores=given.cores,
            kv_cache_bytes=given.kv_cache_memory_bytes,
            start_timeout_s=given.start_timeout,
            drain_timeout_s=given.drain_timeout,
            shutdown_timeout_s=given.shutdown_timeout,
            adapters=tuple(_named_folder(text) for text in given.adapter),
            contracts=None if given.contracts is None else given.contracts.absolute(),
            extra=extra,
        )

    def check(self) -> None:
        """Raises:
        InvalidInput: naming the option, what is wrong and the way out.
        """
        for option, url in (("--api", self.api), ("--address", self.address)):
            if not url.startswith(("http://", "https://")):
                raise InvalidInput(f"{option} '{url}' must begin with http:// or https://.", option)
        if EVERY_INTERFACE in self.address:
            raise InvalidInput("--address is missing: say where the service reaches the engine.", "--address")
        if not self.key_file.is_file():
            raise InvalidInput(
                f"--key-file '{self.key_file}' is missing: write a key of scope engine into it (everturn keys create engine).",
                "--key-file",
            )
        if self.contracts is not None and not self.contracts.is_dir():
            raise InvalidInput(
                f"--contracts '{self.contracts}' is no folder: make it, and put the terms of approved contracts there.",
                "--contracts",
            )
        _require_free_port(self.host, self.port)
        try:
            self.own_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"--run-dir '{self.own_dir}' cannot be made ({error.strerror}): give a folder that can.",
                "--run-dir",
            ) from error
        try:
            open_store(self.store).require(make=True)
        except InvalidInput as error:
            raise InvalidInput(f"--store {error}", "--store") from error


def _split(argv: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    if "--" not in argv:
        return argv, ()
    at = argv.index("--")
    return argv[:at], tuple(argv[at + 1 :])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workers.launcher",
        description="Starts one vLLM engine, measures its revision, and keeps it registered while it serves.",
        epilog="What follows -- is given to vLLM, and overrides what the launcher gives it.",
    )
    add = parser.add_argument
    add("--model", type=Path, required=True, help="checkpoint folder with .safetensors files")
    add("--served-model-name", required=True)
    add("--port", type=int, required=True)
    add("--host", default="127.0.0.1")
    add("--address", help="where the service reaches the engine (default: http://HOST:PORT)")
    add("--role", choices=[r.value for r in EngineRole], default=EngineRole.BOTH.value)
    add("--api", required=True, help="address of the Everturn API")
    add(
        "--key-file", type=Path, required=True, help="file with a key of scope engine; read again at each use"
    )
    add("--store", required=True, help=HELP)
    add(
        "--run-dir",
        type=Path,
        default=Path(".everturn/engines"),
        help="folder for logs and for hashes of weights; may be shared",
    )
    add(
        "--contracts", type=Path, help="folder of the compatibility contracts that it honours (default: none)"
    )
    add(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="LoRA adapter to serve under NAME, identified by its bytes; may be given again",
    )
    add("--expect", help="revision digest: refuse to serve anything else")
    add(
        "--canary",
        metavar="off|exact|prefix:N",
        help="how much of its answer to fixed words must be its revision's (default: exact in float32, else prefix:4)",
    )
    add(
        "--paranoid",
        action="store_true",
        help="hash every byte of the weights, also of files known by their times",
    )
    add("--zygote", type=Path, help="socket of a running workers.engine_zygote")
    add("--threads", type=int, default=1, help="OMP_NUM_THREADS")
    add("--cores", help="VLLM_CPU_OMP_THREADS_BIND, such as 0 or 0-3")
    add("--kv-cache-memory-bytes", type=int, help="default: 512 MiB on a CPU, else as vLLM chooses")
    add("--start-timeout", type=float, default=1800.0, help="seconds until the model must be loaded")
    add("--drain-timeout", type=float, default=60.0, help="seconds for running requests after SIGTERM")
    add("--shutdown-timeout", type=int, default=30, help="seconds that vLLM itself waits for requests")
    return parser


def _store_address(given: str) -> str:
    try:
        return full_address(given)
    except InvalidInput as error:
        raise InvalidInput(f"--store {error}", "--store") from error


def _canary(given: str | None) -> str | None:
    try:
        compared_tokens(given, "")
    except InvalidInput as error:
        raise InvalidInput(f"--canary {error}", "--canary") from error
    return given


def _named_folder(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not separator or not name or not folder:
        raise InvalidInput(f"--adapter '{text}' must be NAME=FOLDER.", "--adapter")
    return name, Path(folder).absolute()


def _require_free_port(host: str, port: int) -> None:
    if not 0 < port <= LARGEST_PORT:
        raise InvalidInput(f"--port {port} is not between 1 and {LARGEST_PORT}.", "--port")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections in TIME_WAIT are no obstacle, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            cause = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise InvalidInput(
                f"--port {port} on {host} {cause}: stop what uses it, or give a free one.", "--port"
            ) from error
