"""openai-agents, LangChain and LiteLLM, unmodified and each in an environment of its own, against the service with real vLLM.

The tries are those of `make clients`; each is a test here.
"""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.api.stack import Stack
from tests.clients.environments import ROOT, run_in

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ENVIRONMENTS = {
    "clients_agents.py": "clients",
    "clients_langchain.py": "clients",
    "clients_litellm.py": "clients_litellm",
}
Outcome = Callable[[str], tuple[dict[str, str], str]]


def tries(script: str) -> list[str]:
    """Functions of a service that say what was seen."""
    return [
        node.name
        for node in ast.parse((ROOT / "scripts" / script).read_text()).body
        if isinstance(node, ast.AsyncFunctionDef)
        and [argument.arg for argument in node.args.args] == ["service"]
        and isinstance(node.returns, ast.Name)
        and node.returns.id == "str"
    ]


@pytest.fixture(scope="module")
def outcome(calling_stack: Stack, keys: Path) -> Outcome:
    """What a script's one run says of each of its tries, and all that it printed."""

    @cache
    def run(script: str) -> tuple[dict[str, str], str]:
        options = ("--url", f"{calling_stack.url}/v1", "--keys", str(keys), "--calls", "production")
        done = run_in(ENVIRONMENTS[script], f"scripts/{script}", *options)
        printed = f"{done.stdout}\n{done.stderr}"
        words = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
        told = {
            line[1].rstrip(":"): line[0] for line in words if line[:1] in (["ok"], ["FAILED"], ["skipped"])
        }
        assert (done.returncode == 0) == ("FAILED" not in told.values() and bool(told)), printed
        return told, printed

    return run


@pytest.mark.parametrize(
    ("script", "name"), [(script, name) for script in ENVIRONMENTS for name in tries(script)]
)
def test_the_client_finds_what_it_expects(outcome: Outcome, script: str, name: str) -> None:
    told, printed = outcome(script)
    assert told.get(name) == "ok", printed


def test_each_script_tries_something() -> None:
    for script, environment in ENVIRONMENTS.items():
        assert len(tries(script)) >= 4
        assert f"try {environment} {script}" in (ROOT / "scripts/clients.sh").read_text()
