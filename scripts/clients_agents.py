"""`openai-agents`, unmodified, against a running service: `make clients`, in an environment of its own.

One line a try; exits 1 if one fails.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    RunResult,
    RunResultStreaming,
    function_tool,
    set_tracing_disabled,
)
from client_tries import LIMIT, MODEL, QUESTIONS, WEATHER, Service, main, require, require_equal
from openai import AsyncOpenAI
from pydantic import BaseModel

LOOP = ["message", "function_call", "function_call_output", "message"]
"""What a call and its result are in a conversation."""


class Verdict(BaseModel):
    answer: Literal["yes", "no"]


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=service.url, api_key=service.key) as client:
        yield client


def agent_of(client: AsyncOpenAI, model: str = MODEL, **more: object) -> Agent:
    settings = ModelSettings(temperature=0, max_tokens=LIMIT)
    speaks = OpenAIResponsesModel(model=model, openai_client=client)
    return Agent(name="one", model=speaks, model_settings=settings, **more)


def weather_tool(asked: list[str]) -> object:
    @function_tool
    def get_weather(city: str) -> str:
        """Says what the weather is in a city."""
        asked.append(city)
        return WEATHER

    return get_weather


def tokens(result: RunResult | RunResultStreaming) -> tuple[int, int]:
    usage = result.raw_responses[-1].usage
    return usage.input_tokens, usage.output_tokens


def words(item: object) -> str:
    content = item["content"] if isinstance(item, dict) else item.content
    return "".join(part["text"] if isinstance(part, dict) else part.text for part in content)


async def agents_with_a_session(service: Service) -> str:
    """The session is a conversation of ours: the agent reads it before each turn, and adds to it afterwards."""
    async with connected(service) as client:
        agent, session, said = agent_of(client), OpenAIConversationsSession(openai_client=client), list[str]()
        taken = list[int]()
        for question in QUESTIONS[:2]:
            result = await Runner.run(agent, question, session=session)
            said += [question, result.final_output]
            taken.append(tokens(result)[0])
        require(all(said), "an answer to each question")
        require(taken[1] > taken[0], f"the second prompt to have the first turn in it, not {taken} tokens")
        streamed = Runner.run_streamed(agent, QUESTIONS[2], session=session)
        pieces = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        require_equal("".join(pieces), streamed.final_output, "what was streamed")
        said += [QUESTIONS[2], streamed.final_output]
        items = await session.get_items()
        require_equal([words(item) for item in items], said, "the session's words")
        require_equal([item["role"] for item in items], ["user", "assistant"] * 3, "their roles")
        require_equal(len({item["id"] for item in items}), 6, "the number of ids")
        require_equal(await session.get_items(limit=2), items[-2:], "the last two items")
        require_equal(await session.pop_item(), items[-1], "the item that is taken back")
        require_equal(await session.get_items(), items[:-1], "what is left")
        conversation = session.session_id
        await session.clear_session()
        await refused(client.conversations.retrieve(conversation), openai.NotFoundError, "not_found")
    return "three turns, one streamed; each item kept under an id; one taken back; the session cleared"


async def agents_on_a_conversation(service: Service) -> str:
    """The service has the history, and the agent sends what is new."""
    async with connected(service) as client:
        agent, conversation = agent_of(client), await client.conversations.create()
        results = [
            await Runner.run(agent, question, conversation_id=conversation.id) for question in QUESTIONS[:2]
        ]
        (first, answered), (second, _) = (tokens(result) for result in results)
        require(second >= first + answered, f"{second} tokens to hold the {first} + {answered} before them")
        items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
        wanted = [
            text
            for question, result in zip(QUESTIONS, results, strict=False)
            for text in (question, result.final_output)
        ]
        require_equal([words(item) for item in items], wanted, "the conversation's words")
        response = await client.responses.retrieve(results[1].last_response_id)
        require(response.model_extra["revision"].startswith("rev_"), "our own fields beside OpenAI's")
        require_equal(response.output[-1].id, items[-1].id, "the answer's item")
    return "two turns; the second one's prompt goes on from the first one's; `revision` is passed over"


async def agents_by_previous_response(service: Service) -> str:
    async with connected(service) as client:
        agent = agent_of(client)
        first = await Runner.run(agent, QUESTIONS[0])
        second = await Runner.run(agent, QUESTIONS[1], previous_response_id=first.last_response_id)
        require(tokens(second)[0] >= sum(tokens(first)), "the second prompt to go on from the first turn")
        response = await client.responses.retrieve(second.last_response_id)
        require_equal(response.previous_response_id, first.last_response_id, "the response before it")
    return "two turns"


async def agents_of_an_output_type(service: Service) -> str:
    async with connected(service) as client:
        result = await Runner.run(agent_of(client, output_type=Verdict), "Is Rome in Italy?")
        require(isinstance(result.final_output, Verdict), f"a Verdict, not {result.final_output!r}")
    return "an answer held to a schema"


async def agents_errors(service: Service) -> str:
    async with connected(service) as client:
        unknown = Runner.run(agent_of(client, "gpt-99"), QUESTIONS[0])
        await refused(unknown, openai.NotFoundError, "model_not_found")
        stranger = agent_of(client.with_options(api_key="sk-nobody"))
        await refused(Runner.run(stranger, QUESTIONS[0]), openai.AuthenticationError, "invalid_api_key")
        hot = agent_of(client)
        hot.model_settings = ModelSettings(temperature=3)
        await refused(Runner.run(hot, QUESTIONS[0]), openai.BadRequestError, "invalid_value")
    return "an unknown model, an unknown key and a wrong value are the client's own errors"


async def agents_call_a_tool_in_a_session(service: Service) -> str:
    async with connected(service) as client:
        asked, session = list[str](), OpenAIConversationsSession(openai_client=client)
        agent = agent_of(client, service.calls, tools=[weather_tool(asked)])
        streamed = Runner.run_streamed(agent, "Weather?", session=session)
        kinds = [
            event.name async for event in streamed.stream_events() if event.type == "run_item_stream_event"
        ]
        require({"tool_called", "tool_output", "message_output_created"} <= set(kinds), f"a call in {kinds}")
        require_equal(asked, ["Rome"], "the city")
        items = await session.get_items()
        require_equal([item["type"] for item in items], LOOP, "the session's items")
        require_equal(words(items[-1]), streamed.final_output, "its last words")
        again = await Runner.run(agent, "And now?", session=session)
        require(tokens(again)[0] > tokens(streamed)[0], "a prompt with the call before it")
        require_equal(asked, ["Rome"] * 2, "the cities")
        require_equal([item["type"] for item in await session.get_items()], LOOP * 2, "the session's items")
    return "called, answered and spoken of, streamed; and again, with all that in the prompt"


async def agents_call_a_tool_on_a_conversation(service: Service) -> str:
    async with connected(service) as client:
        asked, conversation = list[str](), await client.conversations.create()
        agent = agent_of(client, service.calls, tools=[weather_tool(asked)])
        result = await Runner.run(agent, "Weather?", conversation_id=conversation.id)
        require_equal(asked, ["Rome"], "the city")
        items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
        require_equal([item.type for item in items], LOOP, "the conversation's items")
        require_equal(items[-2].output, WEATHER, "the output that is kept")
        require_equal(words(items[-1]), result.final_output, "its last words")
    return "called, answered and spoken of"


async def refused(asked: object, kind: type[openai.APIStatusError], code: str) -> None:
    try:
        await asked
    except kind as error:
        require_equal(error.code, code, "the error's code")
    else:
        require(None, f"a {kind.__name__}")


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    tries = (
        agents_with_a_session,
        agents_on_a_conversation,
        agents_by_previous_response,
        agents_of_an_output_type,
        agents_errors,
    )
    calling = (agents_call_a_tool_in_a_session, agents_call_a_tool_on_a_conversation)
    sys.exit(main(__doc__, tries, calling))
