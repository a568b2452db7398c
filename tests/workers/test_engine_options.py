"""Contracts and adapters as the launcher is given them: refused by name, and handed to vLLM only as private copies."""

import json
from pathlib import Path

import pytest

from service.domain.artifact import BootId
from service.domain.errors import InvalidInput
from stack.ports import find_free_port
from tests.engines.adapters import TinyAdapter
from workers.engine_options import EngineOptions
from workers.kv_connector.adapters import FOLDER
from workers.vllm_command import vllm_command, with_private_adapters


def options(folder: Path, *more: str) -> EngineOptions:
    key = folder / "engine.key"
    key.write_text("key")
    given = {
        "--model": str(folder),
        "--served-model-name": "chat",
        "--port": str(find_free_port()),
        "--api": "http://127.0.0.1:1",
        "--key-file": str(key),
        "--store": str(folder / "kv"),
        "--run-dir": str(folder / "run"),
    }
    return EngineOptions.parse([*(part for pair in given.items() for part in pair), *more])


def arguments(given: EngineOptions) -> list[str]:
    return list(vllm_command(given, BootId("boot_x"), {}).arguments)


def connector_config(given: EngineOptions) -> dict[str, object]:
    argv = arguments(given)
    config: dict[str, object] = json.loads(argv[argv.index("--kv-transfer-config") + 1])[
        "kv_connector_extra_config"
    ]
    return config


def test_by_default_an_engine_honours_no_contract_and_takes_no_adapter(tmp_path: Path) -> None:
    given = options(tmp_path)
    given.check()
    assert connector_config(given)["contracts"] is None
    assert "--enable-lora" not in arguments(with_private_adapters(given))


def test_a_bucket_reaches_the_connector_and_the_middleware_as_it_was_given(tmp_path: Path) -> None:
    given = options(tmp_path, "--store", "s3://bucket/fleet/")
    command = vllm_command(given, BootId("boot_x"), {"AWS_ACCESS_KEY_ID": "key"})
    assert connector_config(given)["store"] == command.env["EVERTURN_STORE"] == "s3://bucket/fleet"
    assert command.env["AWS_ACCESS_KEY_ID"] == "key"


def test_a_bucket_that_answers_is_taken(tmp_path: Path, bucket: str) -> None:
    options(tmp_path, "--store", f"s3://{bucket}/fleet").check()


def test_a_bucket_that_is_not_there_is_told_before_anything_starts(tmp_path: Path, bucket: str) -> None:
    with pytest.raises(InvalidInput, match="--store 's3://no-such-bucket' does not answer") as caught:
        options(tmp_path, "--store", "s3://no-such-bucket").check()
    assert "\n" not in str(caught.value)


def test_a_store_of_no_known_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="--store 'gs://bucket' is no KV store: give a folder, or s3://BUCKET"
    ):
        options(tmp_path, "--store", "gs://bucket")


def test_the_contracts_folder_reaches_the_connector(tmp_path: Path) -> None:
    (tmp_path / "contracts").mkdir()
    given = options(tmp_path, "--contracts", str(tmp_path / "contracts"))
    given.check()
    assert connector_config(given)["contracts"] == str(tmp_path / "contracts")


def test_a_contracts_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is no folder"):
        options(tmp_path, "--contracts", str(tmp_path / "nowhere")).check()


def test_vllm_is_given_private_copies_of_adapters_and_never_their_paths(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2)):
        TinyAdapter(seed=seed).write(tmp_path / name)
    given = with_private_adapters(
        options(tmp_path, "--adapter", f"a={tmp_path / 'one'}", "--adapter", f"b={tmp_path / 'two'}")
    )
    argv = arguments(given)
    at = argv.index("--lora-modules")
    modules = dict(part.split("=") for part in argv[at + 1 : at + 3])
    assert argv[at - 1] == "--enable-lora"
    assert set(modules) == {"a", "b"}
    assert all(Path(copy).parent == given.own_dir / FOLDER for copy in modules.values())
    assert str(tmp_path / "one") not in " ".join(argv[at:])


@pytest.mark.parametrize("text", ["style", "=folder", "style="])
def test_an_adapter_without_name_or_folder_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="NAME=FOLDER"):
        options(tmp_path, "--adapter", text)


def test_a_folder_that_holds_no_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="adapter_config"):
        with_private_adapters(options(tmp_path, "--adapter", f"style={tmp_path}"))
