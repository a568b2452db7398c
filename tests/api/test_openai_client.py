"""The official client, as it is."""

import openai
import pytest
from openai import AsyncOpenAI

from tests.api.stack import Stack


def test_conversation_turn_and_items(shared_stack: Stack) -> None:
    client = shared_stack.openai
    conversation = client.conversations.create(metadata={"a": "b"})
    assert client.conversations.retrieve(conversation.id) == conversation
    first = client.responses.create(model="production", input="hello", conversation=conversation.id)
    assert first.status == "completed"
    assert first.output_text
    assert first.usage is not None
    assert first.usage.total_tokens == first.usage.input_tokens + first.usage.output_tokens
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=1))
    assert [getattr(i, "role", None) for i in items] == ["user", "assistant"]
    assert client.responses.retrieve(first.id) == first


def test_previous_response_and_our_own_fields(shared_stack: Stack) -> None:
    client = shared_stack.openai
    first = client.responses.create(model="production", input="hello")
    second = client.responses.create(model="production", input="again", previous_response_id=first.id)
    extras = second.model_extra
    assert extras is not None
    assert extras["revision"].startswith("rev_")
    assert extras["kv"]["plan"] in {"cold", "reuse"}


def test_a_stream_of_raw_events(shared_stack: Stack) -> None:
    stream = shared_stack.openai.responses.create(model="production", input="hello", stream=True)
    events = list(stream)
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text


def test_the_accumulating_stream_helper(shared_stack: Stack) -> None:
    with shared_stack.openai.responses.stream(model="production", input="hello") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text


def test_the_helper_takes_a_second_attempt(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True, boot="boot_0")
    stack.start_engine("a", boot="boot_1")
    engine.faults.die_after = 3
    with stack.openai.responses.stream(model="production", input="hello") as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_response()
    assert "everturn.attempt" in kinds
    assert final.output_text == engine.cold_text(engine.prompts[0])


async def test_the_asynchronous_client(shared_stack: Stack) -> None:
    async with AsyncOpenAI(base_url=f"{shared_stack.url}/v1", api_key=shared_stack.secrets.tenant) as client:
        answer = await client.responses.create(model="production", input="hello")
        stream = await client.responses.create(model="production", input="hello", stream=True)
        kinds = [event.type async for event in stream]
    assert answer.output_text
    assert kinds[-1] == "response.completed"


def test_errors_are_the_clients_own(shared_stack: Stack) -> None:
    client = shared_stack.openai
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="gpt-99", input="hello")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model="production", input="")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="sk-wrong").responses.create(model="production", input="hello")


def test_the_client_does_not_repeat_a_turn_that_failed(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation(on_upgrade="stay_strict")
    other = stack.start_engine("b")
    stack.ask("one", conversation=conversation)
    stack.retire(engine)
    stack.move_alias(other)
    before = len(stack.state(conversation).turns)
    with pytest.raises(openai.InternalServerError):
        stack.openai.with_options(max_retries=2).responses.create(input="two", conversation=conversation)
    assert len(stack.state(conversation).turns) == before + 1
