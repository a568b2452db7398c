"""House rules that no other tool checks."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import proxy_bypass

import pytest

from service.domain import rollout
from service.domain.turn import TRANSITIONS

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "workers", "stack", "demo", "migrations")
LONGEST_FILE = 400
LONGEST_FUNCTION = 70
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
BROUGHT_BY_VLLM = {"torch", "vllm", "transformers", "tokenizers", "starlette", "numpy", "blake3"}
ASK = ("get", "post", "put", "patch", "delete", "request", "stream", "Client", "AsyncClient")
ONLY_FOR_A_BUCKET = ("object_store.py", "obstore")

SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_file_is_short_and_says_its_job(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    if path.name == "__init__.py":
        assert not text.strip()
    else:
        assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_no_function_is_long(path: Path) -> None:
    long = [f.name for f in functions(path) if (f.end_lineno or 0) - f.lineno >= LONGEST_FUNCTION]
    assert not long


def test_no_module_has_a_vague_name() -> None:
    assert not [named(path) for path in SOURCES if path.stem in VAGUE_NAMES]


def test_the_domain_needs_nothing_but_the_standard_library() -> None:
    foreign = {
        module
        for path in (ROOT / "service/domain").rglob("*.py")
        for module in imported(path)
        if module.split(".")[0] not in sys.stdlib_module_names and not module.startswith("service.domain")
    }
    assert not foreign


def test_what_runs_inside_vllm_needs_nothing_but_vllm() -> None:
    foreign = {
        module
        for path in (ROOT / "workers/kv_connector").rglob("*.py")
        for module in imported(path)
        if (top := module.split(".")[0]) not in sys.stdlib_module_names
        and (path.name, top) != ONLY_FOR_A_BUCKET
        and top not in BROUGHT_BY_VLLM
        and not module.startswith(("service.domain", "workers.kv_connector"))
    }
    assert not foreign


def test_the_environment_is_read_by_composition_roots_alone() -> None:
    readers = {named(path) for path in SOURCES if re.search(r"\bos\.(environ|getenv)\b", path.read_text())}
    assert readers <= {
        "demo/__main__.py",
        "demo/control.py",
        "demo/train_adapter.py",
        "demo/unguarded.py",
        "migrations/env.py",
        "service/__main__.py",
        "service/store/migrate.py",
        "stack/commands/local.py",
        "stack/database.py",
        "stack/supervisor.py",
        "workers/engine_zygote.py",
        "workers/kv_connector/connector.py",
        "workers/kv_connector/middleware.py",
        "workers/launcher.py",
    }  # fmt: skip


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "bench").rglob("*.py"))], ids=named)
def test_no_service_or_engine_is_asked_through_a_proxy(path: Path) -> None:
    """Httpx makes no exception for this machine."""
    asking = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {f"httpx.{name}" for name in ASK}
        and "trust_env=False" not in map(ast.unparse, node.keywords)
    ]
    assert [ast.unparse(call) for call in asking] == []


def test_no_test_asks_through_a_proxy() -> None:
    assert proxy_bypass("127.0.0.1")
    assert proxy_bypass("localhost")


def test_nothing_names_an_index_of_packages_but_the_setup_script() -> None:
    hosts = re.compile(r"(pypi\.org|pythonhosted|download\.pytorch|registry\.npmjs)")
    tracked = [
        p for p in ROOT.rglob("*") if p.is_file() and not {".venv", ".git", ".everturn"} & set(p.parts)
    ]
    naming = {
        named(p)
        for p in tracked
        if p.suffix not in {".pyc", ".safetensors"} and hosts.search(p.read_text(errors="ignore"))
    }
    assert naming - {"tests/architecture/test_rules.py"} == {"scripts/setup.sh"}


def test_the_drawn_life_of_a_turn_names_every_transition() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    drawn = text[text.index("## The turn") : text.index("## What may vanish")]
    for (before, event), after in TRANSITIONS.items():
        assert before in drawn
        assert event in drawn
        assert after in drawn


def test_the_states_of_a_rollout_in_its_runbook_are_those_of_its_table() -> None:
    text = (ROOT / "docs/rollout-runbook.md").read_text()
    drawn = set(re.findall(r"^\| (\w+) \| `(rollout\.\w+)` \| ([\w, ]+) \|$", text, re.MULTILINE))
    table = {
        (before, event, ", ".join(sorted(after))) for (before, event), after in rollout.TRANSITIONS.items()
    }
    assert drawn == table
