"""The official client, as it is."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from openai import AsyncOpenAI

from tests.api.stack import Stack, eventually, running_stack


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


def test_the_client_and_its_helper_pass_over_a_rebuild_that_is_waited_for(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    client = stack.openai
    chat = client.conversations.create()
    client.responses.create(input="one", conversation=chat.id)
    stack.await_artifacts(chat.id, 1)
    stack.start_engine("b", alias=True)
    raw = list(client.responses.create(input="two", conversation=chat.id, stream=True))
    stack.start_engine("c", alias=True)
    with client.responses.stream(model="production", input="three", conversation=chat.id) as stream:
        helped = list(stream)
        final = stream.get_final_response()
    for events in (raw, helped):
        kinds: list[str] = [event.type for event in events]
        assert kinds[2] == "everturn.rebuild"
        assert kinds[-1] == "response.completed"
        assert [event.sequence_number for event in events] == list(range(len(events)))
    assert final.output_text == "".join(e.delta for e in helped if e.type == "response.output_text.delta")
    response = raw[0].response.id  # type: ignore[union-attr]  # response.created
    for number in range(len(raw)):
        rest = client.responses.retrieve(response, stream=True, starting_after=number)
        assert [event.type for event in rest] == [event.type for event in raw[number + 1 :]]


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


def test_the_client_does_not_repeat_what_meets_a_locked_conversation(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 1
    conversation = stack.conversation()
    sent: list[str] = []
    counted = openai.DefaultHttpxClient(
        event_hooks={"request": [lambda request: sent.append(request.url.path)]}
    )
    with ThreadPoolExecutor(1) as pool, counted:
        running = pool.submit(stack.ask, "one", conversation=conversation)
        eventually(lambda: engine.faults.hold_after is None)
        client = stack.openai.with_options(max_retries=2, http_client=counted)
        with pytest.raises(openai.BadRequestError) as locked:
            client.responses.create(input="two", conversation=conversation)
        engine.faults.release.set()
        running.result()
    assert locked.value.code == "conversation_locked"
    assert sent == ["/v1/responses"]


def test_lists_are_walked_page_by_page(shared_stack: Stack) -> None:
    client = shared_stack.openai
    said = [{"role": "user", "content": f"words {n}"} for n in range(7)]
    conversation = client.conversations.create(items=said)  # type: ignore[arg-type]  # plain messages
    page = client.conversations.items.list(conversation.id, order="asc", limit=3)
    assert page.has_next_page()
    assert page.last_id == page.data[-1].id
    walked = [item.content[0].text for item in page]  # type: ignore[index, union-attr]  # messages of text
    assert walked == [one["content"] for one in said]
    assert [i.id for i in client.conversations.items.list(conversation.id)] == [i.id for i in page][::-1]


def test_items_are_added_read_and_taken_back(shared_stack: Stack) -> None:
    client = shared_stack.openai
    conversation = client.conversations.create(metadata={"a": "b"})
    added = client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "hello"}])
    item = added.data[0]
    assert client.conversations.items.retrieve(str(item.id), conversation_id=conversation.id) == item
    client.conversations.items.delete(str(item.id), conversation_id=conversation.id)
    assert list(client.conversations.items.list(conversation.id)) == []
    assert client.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_headers_say_what_its_fields_do_not(shared_stack: Stack) -> None:
    raw = shared_stack.openai.responses.with_raw_response.create(model="production", input="hello")
    assert raw.headers["x-everturn-revision"] == shared_stack.alias_revision()
    assert raw.parse().id == raw.headers["x-everturn-response"]
    with shared_stack.openai.responses.with_streaming_response.create(
        model="production", input="hello"
    ) as streamed:
        assert streamed.headers["x-request-id"].startswith("req_")


def test_the_stream_helper_takes_a_response_up_again(shared_stack: Stack) -> None:
    client = shared_stack.openai
    first = client.responses.create(model="production", input="hello", stream=True)
    events = list(first)
    response = events[0].response.id  # type: ignore[union-attr]  # response.created
    with client.responses.stream(response_id=response) as again:
        assert [event.sequence_number for event in again] == [event.sequence_number for event in events]
        assert again.get_final_response().id == response
    resumed = client.responses.retrieve(response, stream=True, starting_after=4)
    assert [event.sequence_number for event in resumed] == [event.sequence_number for event in events[5:]]


async def test_the_asynchronous_client_walks_lists_and_accumulates_streams(shared_stack: Stack) -> None:
    async with AsyncOpenAI(base_url=f"{shared_stack.url}/v1", api_key=shared_stack.secrets.tenant) as client:
        conversation = await client.conversations.create()
        async with client.responses.stream(
            model="production", input="hello", conversation=conversation.id
        ) as stream:
            final = await stream.get_final_response()
        walked = [item async for item in client.conversations.items.list(conversation.id, limit=1)]
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_none")
    assert final.output_text
    assert len(walked) == 2


@pytest.mark.parametrize(
    ("body", "headers", "kind", "code"),
    [
        ({"input": "x", "temperature": 3}, {}, openai.BadRequestError, "invalid_value"),
        ({"input": "x", "conversation": "conv_none"}, {}, openai.NotFoundError, "not_found"),
        ({"input": "x", "model": "gpt-99"}, {}, openai.NotFoundError, "model_not_found"),
        (
            {"input": "other"},
            {"Idempotency-Key": "taken"},
            openai.UnprocessableEntityError,
            "idempotency_key_reused",
        ),
        ({"input": "x" * 5_000_000}, {}, openai.APIStatusError, "body_too_large"),
    ],
)
def test_each_kind_of_refusal_is_the_clients_own_error(
    shared_stack: Stack,
    body: dict[str, str],
    headers: dict[str, str],
    kind: type[openai.APIStatusError],
    code: str,
) -> None:
    client = shared_stack.openai
    client.responses.create(input="taken", extra_headers={"Idempotency-Key": "taken"})
    with pytest.raises(kind) as refused:
        client.responses.create(**body, extra_headers=headers)  # type: ignore[call-overload]  # wrong on purpose
    assert refused.value.code == code
    assert str(refused.value.request_id).startswith("req_")


def test_a_key_of_another_scope_is_the_clients_permission_error(shared_stack: Stack) -> None:
    with pytest.raises(openai.PermissionDeniedError):
        shared_stack.openai.with_options(api_key=shared_stack.secrets.operator).models.list()


def test_the_client_waits_out_a_rate_limit_by_itself(database: str) -> None:
    with running_stack(database, requests_per_minute=30) as stack:
        stack.start_engine("a", alias=True)
        client = stack.openai
        with pytest.raises(openai.RateLimitError):
            deque(client.models.list() for _ in range(1000))
        assert client.with_options(max_retries=3).models.list().data
