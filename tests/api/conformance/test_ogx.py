"""The conversation and isolation cases of OGX's (llama-stack's) integration tests, told anew with the official client.

Its files: tests/integration/conversations, and of tests/integration/responses conversation_responses, responses_access_control and
responses_errors, but for what is OGX's own in them (guardrails); the others are in test_ogx_answers.py and test_ogx_parameters.py. Deviations: the
code of a failed response is none of OpenAI's list, which has no words for what can happen here; an item that is brought with the id of one in
another conversation is taken as it is sent, under an id of its own, where OpenAI copies the other one. `make suites` runs the tests themselves.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.api.stack import Stack
from tests.engines.simulated_text import render

HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
NOBODY = "conv_nonexistent123456789012"
NO_ID = "invalid-no-conv-prefix"
Ask = Callable[[OpenAI, str], object]

ASKS: dict[str, Ask] = {
    "retrieve": lambda client, id_: client.conversations.retrieve(id_),
    "update": lambda client, id_: client.conversations.update(id_, metadata={"topic": "test"}),
    "delete": lambda client, id_: client.conversations.delete(id_),
    "list items": lambda client, id_: client.conversations.items.list(id_),
    "create items": lambda client, id_: client.conversations.items.create(id_, items=[HELLO]),  # type: ignore[list-item]  # a plain message
    "retrieve item": lambda client, id_: client.conversations.items.retrieve("item_1", conversation_id=id_),
    "delete item": lambda client, id_: client.conversations.items.delete("item_1", conversation_id=id_),
    "respond": lambda client, id_: client.responses.create(
        model="production", input="Hello", conversation=id_
    ),
}
every_ask = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)


@pytest.fixture
def client(shared_stack: Stack) -> OpenAI:
    return shared_stack.openai


@pytest.fixture
def bob(shared_stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(
        base_url=f"{shared_stack.url}/v1", api_key=shared_stack.other_tenant(), max_retries=0
    ) as other:
        yield other


def test_a_conversation_is_created_retrieved_updated_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "demo"}, items=[HELLO])  # type: ignore[list-item]  # a plain message
    assert made.id.startswith("conv_")
    assert (made.object, made.metadata) == ("conversation", {"topic": "demo"})
    assert isinstance(made.created_at, int)
    assert client.conversations.retrieve(made.id) == made
    updated = client.conversations.update(made.id, metadata={"topic": "project-x"})
    assert (updated.id, updated.created_at) == (made.id, made.created_at)
    assert updated.metadata == {"topic": "project-x"}
    deleted = client.conversations.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "conversation.deleted", True)


def test_items_are_created_in_order_listed_retrieved_and_deleted(client: OpenAI) -> None:
    conversation = client.conversations.create()
    other = HELLO | {"content": [{"type": "input_text", "text": "How are you?"}]}
    made = client.conversations.items.create(conversation.id, items=[HELLO, other])  # type: ignore[list-item]  # plain messages
    assert made.object == "list"
    assert [item.content[0].text for item in made.data] == ["Hello!", "How are you?"]  # type: ignore[index, union-attr]  # messages of text
    assert (made.first_id, made.last_id, made.has_more) == (made.data[0].id, made.data[1].id, False)
    listed = client.conversations.items.list(conversation.id, limit=10)
    assert [item.id for item in listed.data] == [made.last_id, made.first_id]
    assert client.conversations.items.retrieve(made.first_id, conversation_id=conversation.id) == made.data[0]
    assert (
        client.conversations.items.delete(made.first_id, conversation_id=conversation.id).id
        == conversation.id
    )


def test_an_item_that_is_there_is_not_added_again(client: OpenAI) -> None:
    conversation = client.conversations.create()
    [made] = client.conversations.items.create(conversation.id, items=[HELLO]).data  # type: ignore[list-item]  # a plain message
    with pytest.raises(openai.BadRequestError, match="Item already in conversation") as refused:
        client.conversations.items.create(conversation.id, items=[HELLO | {"id": made.id}])  # type: ignore[list-item]  # ditto
    assert (refused.value.code, refused.value.param) == ("item_already_in_conversation", "items")
    assert [item.id for item in client.conversations.items.list(conversation.id)] == [made.id]


def test_an_item_of_another_conversation_is_added_under_an_id_of_its_own(client: OpenAI) -> None:
    """The deviation."""
    first, second = client.conversations.create(), client.conversations.create()
    [made] = client.conversations.items.create(first.id, items=[HELLO]).data  # type: ignore[list-item]  # a plain message
    [added] = client.conversations.items.create(second.id, items=[HELLO | {"id": made.id}]).data  # type: ignore[list-item]  # ditto
    assert added.id != made.id
    client.conversations.items.delete(str(made.id), conversation_id=first.id)
    assert client.conversations.items.retrieve(str(added.id), conversation_id=second.id) == added


@every_ask
def test_what_is_not_there_is_not_found(client: OpenAI, ask: Ask) -> None:
    with pytest.raises(openai.NotFoundError):
        ask(client, NOBODY)


@every_ask
def test_what_is_no_conversations_id_is_a_bad_request(client: OpenAI, ask: Ask) -> None:
    with pytest.raises(openai.BadRequestError, match="conv"):
        ask(client, NO_ID)


@every_ask
def test_what_was_deleted_is_not_found(client: OpenAI, ask: Ask) -> None:
    conversation = client.conversations.create()
    client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError):
        ask(client, conversation.id)


@every_ask
def test_another_users_conversation_is_not_found(client: OpenAI, bob: OpenAI, ask: Ask) -> None:
    conversation = client.conversations.create()
    with pytest.raises(openai.NotFoundError):
        ask(bob, conversation.id)
    assert client.conversations.retrieve(conversation.id) == conversation


def test_responses_and_streams_are_in_the_conversation(client: OpenAI) -> None:
    conversation = client.conversations.create(metadata={"topic": "test"})
    first = client.responses.create(
        model="production", input=[{"role": "user", "content": "Say hello"}], conversation=conversation.id
    )
    stream = client.responses.create(
        model="production", input="Say goodbye", conversation=conversation.id, stream=True
    )
    last = list(stream)[-1]
    assert last.type == "response.completed"
    assert first.id.startswith("resp_")
    assert first.id != last.response.id
    assert first.output_text.strip()
    assert last.response.output_text.strip()
    items = client.conversations.items.list(conversation.id, order="asc")
    assert [getattr(item, "role", None) for item in items] == ["user", "assistant"] * 2


def test_a_conversation_and_a_previous_response_exclude_each_other(client: OpenAI) -> None:
    response = client.responses.create(model="production", input="First response")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(
            model="production", input="Hello", conversation="conv_test123", previous_response_id=response.id
        )
    assert refused.value.code == "mutually_exclusive_parameters"
    assert "mutually exclusive" in str(refused.value).lower()


def test_what_a_conversation_began_with_is_in_the_prompt(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    said = [
        {"type": "message", "role": "user", "content": "My name is Alice"},
        {"type": "message", "role": "assistant", "content": "Hello Alice!"},
    ]
    conversation = stack.openai.conversations.create(items=said)  # type: ignore[arg-type]  # plain messages
    stack.openai.responses.create(
        model="production",
        input=[{"role": "user", "content": "What's my name?"}],
        conversation=conversation.id,
    )
    asked = [(one["role"], one["content"]) for one in said] + [("user", "What's my name?")]
    assert engine.prompts == [tuple(render([{"role": role, "content": text} for role, text in asked]))]


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"max_tool_calls": 0, "tools": [{"type": "web_search"}]}, "max_tool_calls"),
        ({"temperature": 3.0}, "temperature"),
        ({"tool_choice": "invalid_choice"}, "tool_choice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_a_bad_request_that_names_it(
    client: OpenAI, asked: dict[str, Any], word: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=word):
        client.responses.create(model="production", input="Hello", **asked)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.responses.retrieve("resp_nonexistent123456"),
        lambda client: client.responses.delete("resp_nonexistent123456"),
        lambda client: client.responses.create(model="nonexistent-model-xyz-12345", input="Hello"),
        lambda client: client.responses.create(
            model="production", input="Hello", previous_response_id="resp_nonexistent123456"
        ),
    ],
    ids=["retrieve", "delete", "model", "previous"],
)
def test_no_such_response_or_model_is_not_found(client: OpenAI, ask: Callable[[OpenAI], object]) -> None:
    with pytest.raises(openai.NotFoundError, match="nonexistent"):
        ask(client)


def test_a_request_that_is_not_one_has_openais_envelope(shared_stack: Stack) -> None:
    answer = shared_stack.http.post("/v1/responses", json={})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_stream_tells_from_its_first_event_on_what_it_was_asked_with(client: OpenAI) -> None:
    """As a response that is waited for does."""
    tool = {"type": "function", "name": "get_time", "parameters": {"type": "object"}, "strict": False}
    form = {"type": "json_schema", "name": "Time", "schema": {"type": "object"}, "strict": False}
    stream = client.responses.create(  # type: ignore[call-overload]  # plain objects
        model="production",
        input="What time is it?",
        tools=[tool],
        tool_choice="none",
        parallel_tool_calls=False,
        text={"format": form},
        stream=True,
    )
    whole = [event.response for event in stream if hasattr(event, "response")]
    assert len(whole) >= 3
    for response in whole:
        assert [one.name for one in response.tools] == ["get_time"]
        assert (response.tool_choice, response.parallel_tool_calls) == ("none", False)
        assert response.text.format.name == "Time"


@pytest.mark.parametrize("most", [100, 2])
def test_a_stream_that_ended_well_or_at_its_limit_has_no_error(client: OpenAI, most: int) -> None:
    events = list(
        client.responses.create(model="production", input="Say hello.", stream=True, max_output_tokens=most)
    )
    last = events[-1]
    assert last.type == ("response.completed" if most == 100 else "response.incomplete")
    assert last.response.error is None


def test_many_clients_at_once_each_have_their_own_turns(client: OpenAI) -> None:
    def worker(_: int) -> str:
        conversation = client.conversations.create()
        client.responses.create(model="production", input="Say hello", conversation=conversation.id)
        stream = client.responses.create(
            model="production", input="Say goodbye", conversation=conversation.id, stream=True
        )
        assert list(stream)[-1].type == "response.completed"
        return conversation.id

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(worker, range(8)))
    assert len(set(made)) == 8
    assert {len(client.conversations.items.list(one).data) for one in made} == {4}


def test_a_user_neither_reads_deletes_lists_nor_continues_anothers_response(
    client: OpenAI, bob: OpenAI
) -> None:
    mine = client.responses.create(model="production", input="Hello from Alice", store=True)
    theirs = bob.responses.create(model="production", input="Hello from Bob", store=True)
    asks: tuple[Callable[[], object], ...] = (
        lambda: bob.responses.retrieve(mine.id),
        lambda: bob.responses.delete(mine.id),
        lambda: bob.responses.input_items.list(mine.id),
        lambda: bob.responses.create(model="production", input="Hijack", previous_response_id=mine.id),
        lambda: client.responses.retrieve(theirs.id),
    )
    for ask in asks:
        with pytest.raises(openai.NotFoundError):
            ask()
    assert client.responses.retrieve(mine.id) == mine
    assert bob.responses.retrieve(theirs.id) == theirs
    assert client.responses.create(
        model="production", input="Go on", previous_response_id=mine.id
    ).output_text
