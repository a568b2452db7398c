"""A pytest plugin that gives OGX's integration tests, unchanged, a service that is there already in the place of the one they start.

Runs in the environment that scripts/suites.sh makes, without the suite's own conftest files. Reads EVERTURN_SUITES; writes what became of each case.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai import OpenAI

PROVIDER = "everturn"
PATIENCE_S = 600.0


@dataclass(slots=True, kw_only=True)
class Asked:
    """As scripts/suites.py writes it."""

    base_url: str
    key: str
    model: str
    scripted_model: str
    scripted: list[str]
    """Patterns of cases that need an answer which only the scripted model gives."""
    left_out: list[str]
    report: str
    outcomes: dict[str, dict[str, str]] = field(default_factory=dict)

    def note(self, case: str, outcome: str, said: str) -> None:
        """The first that is no success stays: a test that failed is not mended by its teardown."""
        if self.outcomes.get(case, {}).get("outcome", "passed") == "passed":
            self.outcomes[case] = {"outcome": outcome, "said": said}


ASKED = Asked(**json.loads(os.environ["EVERTURN_SUITES"]))


def case_of(node: str) -> str:
    return (
        node.removeprefix("tests/integration/").replace("openai_client-", "").replace("[openai_client]", "")
    )


def matches(case: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(case.replace("[", "("), pattern.replace("[", "(")) for pattern in patterns)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gone = [item for item in items if matches(case_of(item.nodeid), ASKED.left_out)]
    for item in gone:
        ASKED.note(case_of(item.nodeid), "left out", "")
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in gone]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    said = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    ASKED.note(case_of(report.nodeid), report.outcome, str(said))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        ASKED.note(case_of(report.nodeid), "failed", report.longreprtext)


def pytest_sessionfinish() -> None:
    Path(ASKED.report).write_text(json.dumps(ASKED.outcomes), "utf-8")


class OgxClient:
    """The official client, with what the suite asks of OGX's own beside it: who provides a model."""

    def __init__(self, client: OpenAI) -> None:
        self._client = client
        self.models = SimpleNamespace(list=self._models)
        provider = SimpleNamespace(api="inference", provider_id=PROVIDER, provider_type=f"remote::{PROVIDER}")
        self.providers = SimpleNamespace(list=lambda: [provider])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _models(self) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(
                id=one.id, custom_metadata={"provider_id": PROVIDER, "provider_resource_id": one.id}
            )
            for one in self._client.models.list()
        ]


@pytest.fixture(scope="session")
def openai_client() -> Iterator[OpenAI]:
    with OpenAI(base_url=ASKED.base_url, api_key=ASKED.key, max_retries=0, timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture(scope="session")
def ogx_client(openai_client: OpenAI) -> OgxClient:
    return OgxClient(openai_client)


@pytest.fixture(scope="session")
def client_with_models(ogx_client: OgxClient) -> OgxClient:
    return ogx_client


@pytest.fixture(params=["openai_client"])
def compat_client(openai_client: OpenAI) -> OpenAI:
    return openai_client


@pytest.fixture
def responses_client(compat_client: OpenAI) -> OpenAI:
    return compat_client


@pytest.fixture
def text_model_id(request: pytest.FixtureRequest) -> str:
    scripted = matches(case_of(request.node.nodeid), ASKED.scripted)
    return ASKED.scripted_model if scripted else ASKED.model


@pytest.fixture
def langchain_chat(openai_client: OpenAI, text_model_id: str) -> Callable[..., Any]:
    # Only in the suite's own environment.
    chat_model = import_module("langchain_openai").ChatOpenAI
    return partial(
        chat_model,
        base_url=ASKED.base_url,
        api_key=openai_client.api_key,
        model=text_model_id,
        use_responses_api=True,
    )


@pytest.fixture
def vision_model_id() -> None:
    pytest.skip("vision_model_id empty - skipping test")


@pytest.fixture(scope="session")
def require_server() -> None:
    """It is there."""
