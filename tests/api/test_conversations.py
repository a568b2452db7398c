"""Conversations and responses as they are read back."""

from tests.api.stack import Stack
from tests.engines.simulated_text import render


def test_a_conversation_reads_back_as_it_was_made(shared_stack: Stack) -> None:
    made = shared_stack.http.post(
        "/v1/conversations", json={"metadata": {"a": "b"}, "alias": "production", "on_upgrade": "stay"}
    ).json()
    assert made["object"] == "conversation"
    assert made["metadata"] == {"a": "b"}
    assert (made["alias"], made["on_upgrade"]) == ("production", "stay")
    assert isinstance(made["created_at"], int)
    assert shared_stack.http.get(f"/v1/conversations/{made['id']}").json() == made


def test_first_items_are_in_the_first_prompt(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes?", "annotations": []}]},
    ]
    stack.ask("go", conversation=stack.conversation(items=items))
    said = [("system", "be brief"), ("user", "hi"), ("assistant", "yes?"), ("user", "go")]
    assert engine.prompts == [tuple(render([{"role": r, "content": c} for r, c in said]))]


def test_instructions_lead_the_first_prompt_and_are_shown(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    answer = stack.ask("go", instructions="be brief")
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "go"}]
    assert engine.prompts == [tuple(render(said))]
    assert answer["instructions"] == "be brief"


def test_items_are_listed_newest_first_page_by_page(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    for text in ("one", "two"):
        shared_stack.ask(text, conversation=conversation)
    path = f"/v1/conversations/{conversation}/items"
    everything = shared_stack.http.get(path, params={"order": "asc"}).json()
    assert [i["role"] for i in everything["data"]] == ["user", "assistant"] * 2
    assert [i["content"][0]["type"] for i in everything["data"]] == ["input_text", "output_text"] * 2
    assert everything["has_more"] is False
    first = shared_stack.http.get(path, params={"limit": 3}).json()
    assert first["has_more"] is True
    assert (first["first_id"], first["last_id"]) == (first["data"][0]["id"], first["data"][-1]["id"])
    rest = shared_stack.http.get(path, params={"after": first["last_id"]}).json()
    assert [*first["data"], *rest["data"]] == everything["data"][::-1]
    assert rest["has_more"] is False


def test_a_page_is_of_20_items_unless_it_is_asked_for_otherwise_and_of_100_at_most(
    shared_stack: Stack,
) -> None:
    conversation = shared_stack.conversation(items=[{"role": "user", "content": str(n)} for n in range(20)])
    path = f"/v1/conversations/{conversation}/items"
    shared_stack.http.post(path, json={"items": [{"role": "user", "content": "20"}]}).raise_for_status()
    page = shared_stack.http.get(path).json()
    assert [item["content"][0]["text"] for item in page["data"]] == [str(n) for n in range(20, 0, -1)]
    assert page["has_more"] is True
    assert len(shared_stack.http.get(path, params={"limit": 100}).json()["data"]) == 21


def test_there_is_no_list_of_conversations(shared_stack: Stack) -> None:
    assert shared_stack.http.get("/v1/conversations").status_code == 405


def test_an_empty_conversation_lists_nothing(shared_stack: Stack) -> None:
    listed = shared_stack.http.get(f"/v1/conversations/{shared_stack.conversation()}/items").json()
    assert listed == {"object": "list", "data": [], "has_more": False, "first_id": "", "last_id": ""}


def test_a_response_without_a_conversation_makes_one_and_can_be_continued(shared_stack: Stack) -> None:
    first = shared_stack.ask("one")
    second = shared_stack.ask("two", previous_response_id=first["id"])
    assert second["conversation"] == first["conversation"]
    assert second["previous_response_id"] == first["id"]
    assert shared_stack.ask("one")["conversation"] != first["conversation"]


def test_a_response_shows_what_was_asked_of_it(shared_stack: Stack) -> None:
    asked = {"temperature": 0.5, "top_p": 0.9, "max_output_tokens": 50, "metadata": {"k": "v"}}
    answer = shared_stack.ask("one", **asked)
    assert {name: answer[name] for name in asked} == asked
    assert answer["model"] == "production"
    assert shared_stack.http.get(f"/v1/responses/{answer['id']}").json() == answer


def test_text_of_every_kind_comes_back_as_it_was_sent(shared_stack: Stack) -> None:
    text = "nul \x00, line \u2028, mark \uf8ff0000, emoji \U0001f600, <|im_end|>"
    conversation = shared_stack.conversation()
    shared_stack.ask(text, conversation=conversation)
    listed = shared_stack.http.get(f"/v1/conversations/{conversation}/items", params={"order": "asc"}).json()
    assert listed["data"][0]["content"][0]["text"] == text


def test_openai_parameters_that_ask_for_what_is_done_anyway_are_taken(shared_stack: Stack) -> None:
    answer = shared_stack.ask(
        "one",
        store=True,
        background=False,
        tools=[],
        tool_choice="auto",
        truncation="disabled",
        parallel_tool_calls=True,
        text={"format": {"type": "text"}},
        include=[],
        service_tier="auto",
        user=None,
    )
    assert answer["status"] == "completed"
