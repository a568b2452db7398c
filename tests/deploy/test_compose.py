"""There is no Docker engine in these tests: the file is checked against the published schema, and against our own parts."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

from service import __main__ as entry
from workers import kv_collector
from workers.engine_options import EngineOptions
from workers.kv_connector.store_address import full_address

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())
"""github.com/compose-spec/compose-spec, schema/compose-spec.json at 170098b (Apache-2.0)."""

ENGINES = ["engine-v12", "engine-v13", "engine-v12-cpu", "engine-v13-cpu"]
KV_PARTS = [*ENGINES, "kv-collector"]


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def with_defaults(text: str) -> str:
    """As Compose reads it where nothing is set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def command(service: str) -> list[str]:
    return [with_defaults(argument) for argument in compose()["services"][service]["command"]]


def after(option: str, arguments: list[str]) -> str:
    return arguments[arguments.index(option) + 1]


def test_the_file_is_a_compose_file() -> None:
    Draft7Validator(SCHEMA).validate(compose())


def test_the_schema_would_notice_a_misspelt_key() -> None:
    document = compose()
    document["services"]["api"]["comand"] = document["services"]["api"].pop("command")
    with pytest.raises(ValidationError, match="comand"):
        Draft7Validator(SCHEMA).validate(document)


def test_every_part_of_the_stack_is_there() -> None:
    assert set(compose()["services"]) == {
        "postgres", "valkey", "rabbitmq", "api", "worker", "keys", "object-store", "bucket", *KV_PARTS
    }  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_the_launcher_takes_each_engines_arguments(engine: str) -> None:
    options = EngineOptions.parse(command(engine))
    assert options.address == f"http://{engine.removesuffix('-cpu')}:8100"


def test_both_engines_serve_the_same_path_under_the_same_name() -> None:
    v12, v13 = (compose()["services"][name]["command"] for name in ENGINES[:2])
    assert [a for a in v12 if "v12" not in a] == [a for a in v13 if "v13" not in a]


def mounts(service: str) -> dict[str, str]:
    """Volume by the folder that it is mounted at."""
    named = (volume.split(":") for volume in map(with_defaults, compose()["services"][service]["volumes"]))
    return {folder: volume for volume, folder, *_ in named}


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_speak_with_a_key_of_their_own_and_can_read_no_other(engine: str) -> None:
    made = command("keys")
    key_file, all_keys = Path(after("--engine-key", made)), Path(after("--out", made))
    assert after("--key-file", command(engine)) == str(key_file)
    assert mounts(engine)[str(key_file.parent)] == mounts("keys")[str(key_file.parent)]
    assert mounts("keys")[str(all_keys.parent)] not in mounts(engine).values()


def test_bootstrap_takes_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(entry, "bootstrap", lambda *given: made.append(given))
    monkeypatch.setenv("EVERTURN_DATABASE_URL", "postgresql://everturn@postgres/everturn")
    python, module, name, *arguments = command("keys")
    assert (python, module, name) == ("python", "-m", "service")
    assert entry.main(arguments) == 0
    assert len(made) == 1


def test_the_broker_is_valkey_unless_another_is_named() -> None:
    document = compose()
    for service in ("api", "worker"):
        broker = document["services"][service]["environment"]["EVERTURN_BROKER_URL"]
        assert with_defaults(broker) == "redis://valkey:6379/0"
    assert document["services"]["rabbitmq"]["profiles"] == ["rabbitmq"]


def test_the_collector_takes_its_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[Any, ...]] = []
    monkeypatch.setattr(kv_collector, "run", lambda *given: ran.append(given))
    python, module, name, *arguments = command("kv-collector")
    assert (python, module, name) == ("python", "-m", "workers.kv_collector")
    arguments[arguments.index("--store") + 1] = str(tmp_path / "kv")
    assert "--forget-erased" in arguments
    assert "EVERTURN_DATABASE_URL" in compose()["services"]["kv-collector"]["environment"]
    monkeypatch.setenv("EVERTURN_DATABASE_URL", "postgresql://everturn@postgres/everturn")
    assert kv_collector.main(arguments) == 0
    assert len(ran) == 1


def test_engines_and_collector_share_one_bucket_that_is_made_for_them() -> None:
    (address,) = {after("--store", command(part)) for part in KV_PARTS}
    assert full_address(address) == address
    (made,) = re.findall(
        r"mc mb --ignore-existing kv/([\w-]+)", compose()["services"]["bucket"]["entrypoint"][-1]
    )
    assert address == f"s3://{made}"
    for part in KV_PARTS:
        assert "bucket" in compose()["services"][part]["depends_on"]


@pytest.mark.parametrize("service", KV_PARTS)
def test_whoever_touches_kv_knows_the_object_stores_key(service: str) -> None:
    environment = compose()["services"][service]["environment"]
    server = compose()["services"]["object-store"]["environment"]
    assert environment["AWS_ACCESS_KEY_ID"] == server["MINIO_ROOT_USER"]
    assert environment["AWS_SECRET_ACCESS_KEY"] == server["MINIO_ROOT_PASSWORD"]
    assert with_defaults(environment["AWS_ENDPOINT_URL"]) == "http://object-store:9000"


@pytest.mark.parametrize("service", ["api", "worker", "keys"])
def test_nobody_else_knows_it(service: str) -> None:
    assert not [name for name in compose()["services"][service]["environment"] if name.startswith("AWS_")]


@pytest.mark.parametrize("service", ["api", "worker", "keys"])
def test_the_service_may_reach_only_these_engines(service: str) -> None:
    hosts = json.loads(compose()["services"][service]["environment"]["EVERTURN_ENGINE_HOSTS"])
    assert hosts == ["engine-v12", "engine-v13"]


def test_engines_must_answer_the_canary() -> None:
    assert with_defaults(compose()["services"]["api"]["environment"]["EVERTURN_CANARY_REQUIRED"]) == "true"
    assert "--canary" not in command("engine-v12")


@pytest.mark.parametrize("name", ["service", "engine-gpu", "engine-cpu"])
def test_every_dockerfile_copies_only_what_exists(name: str) -> None:
    lines = (ROOT / "deploy" / f"{name}.Dockerfile").read_text().splitlines()
    sources = [line.split()[1] for line in lines if line.startswith("COPY ")]
    assert sources
    assert all((ROOT / source).exists() for source in sources)
