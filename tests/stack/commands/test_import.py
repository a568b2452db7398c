"""`everturn import` against the real API."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from stack.cli import main
from stack.commands.import_transcripts import Importer
from stack.transcript_entries import Message, is_same
from stack.transcript_file import Transcript
from tests.api.stack import Stack
from tests.api.test_tools import CALL, WEATHER, output_of
from tests.stack.commands.talking import api, fails, where
from tests.stack.test_transcript_messages import OPENAI_ITEMS, TALKED

__all__ = ["api"]


USER = {"role": "user", "content": "weather?"}
FUNCTION = {"name": "get_weather", "arguments": '{"city": "Rome"}'}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "call_1", "type": "function", "function": FUNCTION}],
}
TOOL = {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "sunny"}


def transcript(count: int, **more: Any) -> dict[str, Any]:
    said = [{"role": ("user", "assistant")[n % 2], "content": f"words {n}"} for n in range(count)]
    return {"messages": said} | more


def written(folder: Path, *lines: Any) -> str:
    path = folder / "transcripts.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def bring(stack: Stack, file: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["import", file, *where(stack, folder)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def items_of(stack: Stack, conversation: str) -> list[dict[str, Any]]:
    path = f"/v1/conversations/{conversation}/items"
    listed: list[dict[str, Any]] = stack.http.get(path, params={"order": "asc", "limit": "100"}).json()[
        "data"
    ]
    return listed


def texts(stack: Stack, conversation: str) -> list[str]:
    return [item["content"][0]["text"] for item in items_of(stack, conversation)]


def test_conversations_of_any_length_come_in_whole_and_can_be_gone_on_with(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    lines = [
        transcript(45, id="long", metadata={"from": "elsewhere"}),
        transcript(2),
        {"messages": [{"role": "developer", "content": parts}]},
    ]
    long, short, one = bring(api, written(tmp_path, *lines), tmp_path, capsys)
    assert (long["line"], long["id"], short["id"]) == (1, "long", None)
    assert texts(api, long["conversation"]) == [f"words {n}" for n in range(45)]
    assert texts(api, one["conversation"]) == ["one\ntwo"]
    assert api.http.get(f"/v1/conversations/{long['conversation']}").json()["metadata"] == {
        "from": "elsewhere"
    }
    assert api.ask("and now?", conversation=short["conversation"])["status"] == "completed"


@pytest.mark.parametrize("before", [0, 18, 19])
def test_calls_and_their_outputs_come_in_both_ways_and_can_be_gone_on_with(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: int
) -> None:
    """Also where a request ends between a call and its output."""
    earlier = transcript(before)["messages"] if before else []
    answer = {"role": "assistant", "content": "It is sunny."}
    chat = {
        "messages": [*earlier, USER, CALLS | {"content": "Let me see."}, TOOL, answer],
        "id": f"chat {before}",
    }
    items = [
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "id": "fc_9", "status": "completed", "call_id": "call_1", **FUNCTION},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    ]
    responses = {"messages": [*earlier, USER, *items, answer], "id": f"responses {before}"}
    file = written(tmp_path, chat, responses)
    made = bring(api, file, tmp_path, capsys)
    assert bring(api, file, tmp_path, capsys) == made
    for one in made:
        path = f"/v1/conversations/{one['conversation']}/items"
        listed = api.http.get(path, params={"order": "asc", "limit": "100"}).json()["data"][before:]
        assert [item["type"] for item in listed] == [
            *("message", "message", "function_call", "function_call_output", "message")
        ]
        assert (listed[2]["call_id"], listed[2]["arguments"]) == ("call_1", FUNCTION["arguments"])
        assert (listed[3]["call_id"], listed[3]["output"]) == ("call_1", "sunny")
        assert api.ask("and now?", conversation=one["conversation"])["status"] == "completed"


def test_an_export_of_openais_conversations_comes_in_and_says_what_it_is_without(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = transcript(19)["messages"]  # so that one request does not hold it
    file = written(tmp_path, {"id": "conv_68f1", "messages": [*earlier, *OPENAI_ITEMS]})
    assert main(["import", file, *where(api, tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "28 messages, without 'annotations' of 1, 'encrypted_content' of 1, 'phase' of 3" in printed.err
    [made] = [json.loads(line) for line in printed.out.splitlines()]
    assert bring(api, file, tmp_path, capsys) == [made]
    listed = items_of(api, made["conversation"])
    assert all(is_same(item, entry) for item, entry in zip(listed[19:], TALKED, strict=True))
    assert api.ask("and now?", conversation=made["conversation"])["status"] == "completed"


def test_our_own_export_of_a_model_that_reasons_and_calls_comes_in_again(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = api.start_engine("reasons", alias=True)
    engine.faults.reasons = True
    engine.faults.says = [f"<think>It asks of rain.</think>{CALL}", "No rain."]
    conversation = api.conversation()
    first = api.ask("rain?", conversation=conversation, tools=[WEATHER])
    api.post(input=[output_of(first)], conversation=conversation, tools=[WEATHER]).raise_for_status()
    exported = items_of(api, conversation)
    kinds = [item["type"] for item in exported]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output", "message"]
    file = written(tmp_path, {"id": conversation, "messages": exported})
    [made] = bring(api, file, tmp_path, capsys)
    assert [without_ids(item) for item in items_of(api, made["conversation"])] == [
        without_ids(item) for item in exported
    ]


def without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name != "id"}


def test_a_line_whose_call_has_changed_since_is_refused(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [*transcript(21)["messages"], USER, CALLS, TOOL]
    bring(api, written(tmp_path, {"messages": messages, "id": "call changed"}), tmp_path, capsys)
    changed = [*messages[:-1], TOOL | {"content": "rain"}]
    told = fails(
        ["import", written(tmp_path, {"messages": changed, "id": "call changed"}), *where(api, tmp_path)],
        capsys,
    )
    assert "as its number 24" in told


def test_a_second_run_makes_nothing_twice(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, transcript(21, id="again"), transcript(2), transcript(2))
    first = bring(api, file, tmp_path, capsys)
    assert len({one["conversation"] for one in first}) == 3
    api.ask("meanwhile", conversation=first[0]["conversation"])
    assert bring(api, file, tmp_path, capsys) == first
    assert len(texts(api, first[0]["conversation"])) == 23


def test_a_run_that_was_stopped_half_way_is_gone_on_with(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is left by one that was killed between two requests of a long conversation."""
    whole = transcript(45, id="half way")
    file = written(tmp_path, whole)
    [made] = bring(api, file, tmp_path, capsys)
    items = api.http.get(
        f"/v1/conversations/{made['conversation']}/items", params={"limit": "5", "order": "desc"}
    ).json()["data"]
    for item in items:
        api.http.delete(f"/v1/conversations/{made['conversation']}/items/{item['id']}").raise_for_status()
    assert bring(api, file, tmp_path, capsys) == [made]
    assert texts(api, made["conversation"]) == [f"words {n}" for n in range(45)]


def test_two_imports_at_once_add_nothing_twice(api: Stack) -> None:
    """The other one adds what this one is about to."""
    messages = tuple(Message(role="user", text=f"words {n}") for n in range(45))
    wanted = Transcript(line=1, id="both", key="import-both", metadata={}, messages=messages)
    other = Importer(http=api.http, alias=None, sleep=lambda _: None)

    def overtake(request: httpx.Request) -> None:
        if request.method == "POST" and request.url.path.endswith("/items"):
            this.event_hooks = {}
            other.bring(wanted)

    with httpx.Client(
        base_url=api.url, headers=api.http.headers, event_hooks={"request": [overtake]}
    ) as this:
        conversation = Importer(http=this, alias=None, sleep=lambda _: None).bring(wanted)
    assert texts(api, conversation) == [f"words {n}" for n in range(45)]


def test_a_line_that_has_changed_since_is_refused_by_its_number(
    api: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring(api, written(tmp_path, transcript(22, id="changed")), tmp_path, capsys)
    early = transcript(22, id="changed", metadata={"a": "b"})
    told = fails(["import", written(tmp_path, early), *where(api, tmp_path)], capsys)
    assert "transcripts.jsonl:1: The Idempotency-Key" in told
    late = transcript(22, id="changed")
    late["messages"][21]["content"] = "other words"
    told = fails(["import", written(tmp_path, late), *where(api, tmp_path)], capsys)
    assert "transcripts.jsonl:1: conv_" in told
    assert "as its number 22" in told


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("{", "not JSON"),
        ([1], "not a JSON object"),
        ({"messages": []}, "'messages' must be a list that is not empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "'messages[0].tool_call_id' must be a string"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "'messages[0].role' is 'critic'"),
        ({"messages": [{"role": "user"}]}, "'messages[0].content' must be"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "'messages[0].content[0]' is no text",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "'messages[0].tool_calls[0]' must be an object with 'id' and 'function'",
        ),
        ({"messages": [CALLS, CALLS]}, "'messages[1]' makes the call 'call_1' again"),
        ({"messages": [CALLS, USER]}, "'messages[1]' comes before the output of call 'call_1'"),
        ({"messages": [TOOL]}, "'messages[0]' is the output of 'call_1', which no call before it"),
        ({"messages": [CALLS, TOOL, TOOL]}, "'messages[2]' is the output of 'call_1'"),
        ({"messages": [{"type": "web_search_call"}]}, "'messages[0].type' is 'web_search_call'"),
        ({"messages": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "have 'arguments'"),
        ({"messages": [USER | {"tool_calls": [{"id": "c"}]}]}, "'messages[0].tool_calls' cannot be imported"),
        (transcript(1, name="x"), "unknown field 'name'"),
        (transcript(1, id=7), "'id' must be a string"),
        (transcript(1, metadata={"a": 1}), "'metadata.a' must be a string"),
        (transcript(1, metadata={"everturn.x": "y"}), "Unknown metadata key: 'everturn.x'"),
        (transcript(1, metadata={"everturn.on_upgrade": "never"}), "'on_upgrade' must be one of"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: Any, cause: str
) -> None:
    file = written(tmp_path, transcript(1), line, transcript(1))
    told = fails(["import", file, "--dry-run"], capsys).splitlines()
    assert told[0] == "everturn: nothing was imported"
    assert told[1].startswith(f"{file}:2: ")
    assert cause in told[1]
    assert len(told) == 2


def test_an_id_stands_once_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, transcript(1, id="a"), transcript(2, id="a"))
    assert f"{file}:2: 'id' 'a' stands in line 1 already" in fails(["import", file, "--dry-run"], capsys)


def test_a_dry_run_needs_no_service_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, transcript(3), "", transcript(4))
    assert main(["import", file, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "2 conversations, 7 messages" in printed.err


def test_a_busy_service_is_asked_again_when_it_says() -> None:
    answers = [
        httpx.Response(429, headers={"retry-after": "7"}),
        httpx.Response(503),
        httpx.Response(200, json={"id": "c"}),
    ]
    waited: list[float] = []
    with httpx.Client(base_url="http://x", transport=httpx.MockTransport(lambda _: answers.pop(0))) as http:
        one = Transcript(line=1, id=None, key="k", metadata={}, messages=(Message(role="user", text="x"),))
        assert Importer(http=http, alias=None, sleep=waited.append).bring(one) == "c"
    assert waited == [7.0, 2.0]
