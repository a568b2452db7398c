"""There is no Docker engine in these tests: the file is checked against the published schema, and against our own parts."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError

from workers.engine_options import EngineOptions

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads(Path(__file__).with_name("compose-spec.json").read_text())
"""github.com/compose-spec/compose-spec, schema/compose-spec.json at 170098b (Apache-2.0)."""

ENGINES = ["engine-v12", "engine-v13", "engine-v12-cpu", "engine-v13-cpu"]


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def test_the_file_is_a_compose_file() -> None:
    Draft7Validator(SCHEMA).validate(compose())


def test_the_schema_would_notice_a_misspelt_key() -> None:
    document = compose()
    document["services"]["api"]["comand"] = document["services"]["api"].pop("command")
    with pytest.raises(ValidationError, match="comand"):
        Draft7Validator(SCHEMA).validate(document)


def test_every_part_of_the_stack_is_there() -> None:
    assert set(compose()["services"]) == {
        "postgres", "valkey", "api", "worker", "keys", "object-store", *ENGINES
    }  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_the_launcher_takes_each_engines_arguments(engine: str) -> None:
    options = EngineOptions.parse(compose()["services"][engine]["command"])
    assert options.address == f"http://{engine.removesuffix('-cpu')}:8100"


def test_both_engines_serve_the_same_path_under_the_same_name() -> None:
    v12, v13 = (compose()["services"][name]["command"] for name in ENGINES[:2])
    assert [a for a in v12 if "v12" not in a] == [a for a in v13 if "v13" not in a]


@pytest.mark.parametrize("service", ["api", "worker", "keys"])
def test_the_service_may_reach_only_these_engines(service: str) -> None:
    hosts = json.loads(compose()["services"][service]["environment"]["EVERTURN_ENGINE_HOSTS"])
    assert hosts == ["engine-v12", "engine-v13"]


@pytest.mark.parametrize("name", ["service", "engine-gpu", "engine-cpu"])
def test_every_dockerfile_copies_only_what_exists(name: str) -> None:
    lines = (ROOT / "deploy" / f"{name}.Dockerfile").read_text().splitlines()
    sources = [line.split()[1] for line in lines if line.startswith("COPY ")]
    assert sources
    assert all((ROOT / source).exists() for source in sources)
