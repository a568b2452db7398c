"""`make suites` says what it needs, counts what it found against what is expected, and its scripted model answers from its prompt."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.api.conformance.conftest import SCRIPTS
from tests.api.stack import Stack

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
TIME = WEATHER | {"name": "get_time"}


@pytest.fixture
def scripted(stack: Stack, suites: ModuleType) -> Iterator[str]:
    with suites.suites_engine.serving(stack.admin) as alias:
        yield alias


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPTS / "suites.sh"],
        env={"PATH": os.environ["PATH"]} | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_without_the_checkouts_it_says_where_they_are_to_be_had(tmp_path: Path) -> None:
    neither = run()
    assert neither.returncode == 1
    assert neither.stderr.count("\n") == 1
    assert "OPEN_RESPONSES=''" in neither.stderr
    assert "https://github.com/openresponses/openresponses" in neither.stderr
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "compliance-test.ts").touch()
    one = run(OPEN_RESPONSES=str(tmp_path), OGX="/nowhere")
    assert one.returncode == 1
    assert "OGX='/nowhere'" in one.stderr
    assert "https://github.com/ogx-ai/ogx" in one.stderr


@pytest.mark.parametrize(
    ("case", "outcome", "said", "counted"),
    [
        ("other", "passed", "", "passed"),
        ("other", "skipped", "", "skipped"),
        ("other", "left out", "", "left_out"),
        ("other", "failed", "no images", "unexpected"),
        ("image[1]", "failed", "400: no images", "deviations"),
        ("image[1]", "failed", "500", "unexpected"),
        ("image[1]", "passed", "", "unexpected"),
        ("image[1]", "skipped", "", "unexpected"),
    ],
)
def test_only_a_known_deviation_that_fails_as_it_is_known_to_is_expected(
    suites: ModuleType, case: str, outcome: str, said: str, counted: str
) -> None:
    known = [suites.expected.Deviation(cases=("image[*",), says="no images", why="")]
    counts = suites.told("x", [suites.Outcome(case=case, outcome=outcome, said=said)], known)
    assert {kind: number for kind, number in counts.items() if number} == {counted: 1}


def test_every_deviation_and_every_case_that_is_left_out_has_its_reason(suites: ModuleType) -> None:
    expected = suites.expected
    for known in (*expected.OPEN_RESPONSES_DEVIATIONS, *expected.OGX_DEVIATIONS):
        assert known.cases
        assert known.says
        assert known.why
    for left in (*expected.OPEN_RESPONSES_LEFT_OUT, *expected.OGX_LEFT_OUT):
        assert left.cases
        assert left.why


@pytest.mark.parametrize(
    ("case", "left_out"),
    [
        ("responses/test_file_search.py::test_response_text_format[x]", False),
        ("responses/test_file_search.py::test_response_file_search_filter_by_region[x]", True),
        ("responses/test_compact_responses.py::TestCompactResponses::test_compact_roundtrip[x]", True),
        ("responses/test_langgraph_responses.py::test_langgraph_basic[x]", False),
    ],
)
def test_only_what_asks_for_what_is_not_there_is_left_out(
    suites: ModuleType, case: str, left_out: bool
) -> None:
    patterns = [pattern for one in suites.expected.OGX_LEFT_OUT for pattern in one.cases]
    assert bool(suites.named([case], patterns)) is left_out


def test_its_model_calls_the_tools_that_it_is_shown(stack: Stack, scripted: str) -> None:
    def calls(text: str, **more: Any) -> list[str]:
        answer = stack.ask(text, model=scripted, **more)
        return [item["name"] for item in answer["output"] if item["type"] == "function_call"]

    both = "What is the weather in Paris and the current time in London?"
    assert calls(both, tools=[WEATHER, TIME]) == ["get_weather", "get_time"]
    assert calls(both, tools=[WEATHER, TIME], parallel_tool_calls=False) == ["get_weather"]
    assert calls(both) == []


def test_its_model_holds_to_a_schema_that_it_is_given(stack: Stack, scripted: str) -> None:
    schema = {"type": "object", "properties": {"ages": {"type": "array", "items": {"type": "integer"}}}}
    form = {"type": "json_schema", "name": "people", "schema": schema}
    answer = stack.ask("Who?", model=scripted, text={"format": form})
    assert json.loads(answer["output"][0]["content"][0]["text"]) == {"ages": [30]}


def test_its_model_answers_from_what_its_conversation_has(stack: Stack, scripted: str) -> None:
    told = [{"role": "user", "content": "I like to eat apples."}]
    conversation = stack.conversation(items=told, alias=scripted)
    asked = "What do I like to eat?"
    answered = stack.ask(asked, model=scripted, conversation=conversation)
    assert "apples" in answered["output"][0]["content"][0]["text"]
    assert "apples" not in stack.ask(asked, model=scripted)["output"][0]["content"][0]["text"]


def test_its_engine_is_gone_afterwards(stack: Stack, suites: ModuleType) -> None:
    def states() -> list[str]:
        return [engine["state"] for engine in stack.admin.get("/admin/engines").json()["data"]]

    with suites.suites_engine.serving(stack.admin):
        assert states() == ["ready"]
    assert states() == ["gone"]
