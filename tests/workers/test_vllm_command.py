"""What of the launcher's options reaches vLLM and our connector in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.domain.artifact import BootId
from workers.engine_options import EngineOptions
from workers.vllm_command import vllm_command


def connector_config(tmp_path: Path, *options: str) -> dict[str, Any]:
    given = EngineOptions.parse(
        [
            *("--model", str(tmp_path), "--served-model-name", "chat", "--port", "8101"),
            *("--api", "http://127.0.0.1:8000", "--key-file", "key", "--store", "kv", *options),
        ]
    )
    arguments = vllm_command(given, BootId("boot_a"), {}).arguments
    transfer = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
    extra: dict[str, Any] = transfer["kv_connector_extra_config"]
    return extra


@pytest.mark.parametrize("options", [(), ("--paranoid",)])
def test_a_paranoid_launch_is_a_paranoid_measurement(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert connector_config(tmp_path, *options)["paranoid"] is bool(options)


def test_an_engine_learns_no_address_of_database_or_broker(tmp_path: Path) -> None:
    given = EngineOptions.parse(
        [
            *("--model", str(tmp_path), "--served-model-name", "chat", "--port", "8101"),
            *("--api", "http://127.0.0.1:8000", "--key-file", "key", "--store", "kv"),
        ]
    )
    secrets = {"EVERTURN_DATABASE_URL": "postgresql://a:b@c/d", "EVERTURN_BROKER_URL": "redis://a"}
    env = vllm_command(given, BootId("boot_a"), {"HOME": "/home", **secrets}).env
    assert env["HOME"] == "/home"
    assert not env.keys() & secrets.keys()
