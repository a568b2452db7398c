"""The command line and environment of one vLLM engine with Everturn's connector and middleware in it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from service.domain.artifact import BootId
from workers.engine_options import EngineOptions
from workers.kv_connector.adapters import FOLDER, take_copy

SECRETS = ("EVERTURN_DATABASE_URL", "EVERTURN_BROKER_URL")
"""Of the service's environment; an engine talks to neither, and may run a model's own code."""
PROGRAM = "vllm.entrypoints.openai.api_server"
PACKAGES = Path(__file__).parents[1]
BLOCK_SIZE = 32
MAX_MODEL_LEN = 4096


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
    options: EngineOptions, boot: BootId, base_env: Mapping[str, str], *, weights: str | None = None
) -> Command:
    """`weights` is their digest before vLLM loads them: it must still be theirs when the engine measures itself."""
    return Command(
        arguments=(*_arguments(options, boot, weights), *options.extra),
        env=_environment(options, base_env),
    )


def _arguments(options: EngineOptions, boot: BootId, weights: str | None) -> tuple[str, ...]:
    valued = {
        "--model": str(options.model),
        "--served-model-name": options.served_name,
        "--host": options.host,
        "--port": str(options.port),
        "--dtype": "float32",
        "--block-size": str(BLOCK_SIZE),
        "--max-model-len": str(MAX_MODEL_LEN),
        "--kv-cache-memory-bytes": str(options.kv_cache_bytes),
        "--kv-transfer-config": json.dumps(_kv_transfer(options, boot, weights)),
        "--middleware": "workers.kv_connector.middleware.EverturnMiddleware",
        "--shutdown-timeout": str(options.shutdown_timeout_s),
    }
    switches = (
        "--enforce-eager",
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
        },
    }


def _environment(options: EngineOptions, base_env: Mapping[str, str]) -> dict[str, str]:
    env = dict(base_env) | {
        "PYTHONPATH": _joined(str(PACKAGES), base_env.get("PYTHONPATH", "")),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": base_env.get("VLLM_LOGGING_LEVEL", "WARNING"),
        "OMP_NUM_THREADS": str(options.threads),
        "EVERTURN_RUN_DIR": str(options.own_dir),
        "EVERTURN_STORE": options.store,
    }
    if options.cores is not None:
        env["VLLM_CPU_OMP_THREADS_BIND"] = options.cores
    # It would override --kv-cache-memory-bytes.
    env.pop("VLLM_CPU_KVCACHE_SPACE", None)
    for secret in SECRETS:
        env.pop(secret, None)
    return env


def _joined(first: str, rest: str) -> str:
    return f"{first}:{rest}" if rest else first
