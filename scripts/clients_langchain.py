"""LangChain's `ChatOpenAI`, unmodified, over both APIs of a running service: `make clients`, in an environment of its own.

One line a try; exits 1 if one fails.
"""

import sys
from typing import Literal

import openai
from client_tries import LIMIT, MODEL, QUESTIONS, WEATHER, Service, main, require, require_equal
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel


class Verdict(BaseModel):
    answer: Literal["yes", "no"]


@tool
def get_weather(city: str) -> str:
    """Says what the weather is in a city."""
    require_equal(city, "Rome", "the city")
    return WEATHER


def model_of(service: Service, model: str = MODEL, **more: object) -> ChatOpenAI:
    place = {"base_url": service.url, "api_key": service.key}
    return ChatOpenAI(**{"model": model, "temperature": 0, "max_tokens": LIMIT, **place, **more})


async def langchain_by_previous_response(service: Service) -> str:
    """Sends what is new, and the response before it, as LangChain does it."""
    model = model_of(service, use_responses_api=True, use_previous_response_id=True)
    messages, taken, ids = list[BaseMessage](), list[tuple[int, int]](), list[str]()
    for question in QUESTIONS[:2]:
        messages.append(HumanMessage(question))
        answer = await model.ainvoke(messages)
        require(answer.text, "an answer")
        taken.append((answer.usage_metadata["input_tokens"], answer.usage_metadata["output_tokens"]))
        ids.append(answer.response_metadata["id"])
        messages.append(answer)
    require(taken[1][0] >= sum(taken[0]), f"the second prompt to go on from the first turn, not {taken}")
    messages.append(HumanMessage(QUESTIONS[2]))
    streamed = await gathered(model, messages)
    async with AsyncOpenAI(base_url=service.url, api_key=service.key) as client:
        last = await client.responses.retrieve(streamed.response_metadata["id"])
        require_equal(last.previous_response_id, ids[1], "the response before the streamed one")
        require_equal(last.output_text, streamed.text, "what was streamed")
        require(last.model_extra["revision"].startswith("rev_"), "our own fields beside OpenAI's")
        items = client.conversations.items.list(last.conversation.id, order="asc")
        require_equal(
            [item.content[0].text async for item in items],
            [message.text for message in (*messages, streamed)],
            "the conversation's words",
        )
    return "three turns, one streamed; one conversation has them all; `revision` is passed over"


async def langchain_on_a_conversation(service: Service) -> str:
    async with AsyncOpenAI(base_url=service.url, api_key=service.key) as client:
        conversation = await client.conversations.create()
        model = model_of(service, use_responses_api=True).bind(conversation=conversation.id)
        answers = [await model.ainvoke(question) for question in QUESTIONS[:2]]
        first, second = (answer.usage_metadata for answer in answers)
        require(second["input_tokens"] >= first["total_tokens"], "the second turn to go on from the first")
        items = [item async for item in client.conversations.items.list(conversation.id)]
        require_equal(len(items), 4, "the number of items")
    return "two turns"


async def langchain_chat(service: Service) -> str:
    model = model_of(service, use_responses_api=False)
    answer = await model.ainvoke(QUESTIONS[0])
    require(answer.text, "an answer")
    require(answer.usage_metadata["total_tokens"], "its usage")
    require(answer.response_metadata["system_fingerprint"].startswith("rev_"), "the revision")
    streamed = await gathered(model, [HumanMessage(QUESTIONS[0])])
    require_equal(streamed.text, answer.text, "what was streamed")
    return "one chat completion, and the same one streamed"


async def langchain_structured(service: Service) -> str:
    for responses in (True, False):
        model = model_of(service, use_responses_api=responses).with_structured_output(
            Verdict, method="json_schema"
        )
        verdict = await model.ainvoke("Is Rome in Italy?")
        require(isinstance(verdict, Verdict), f"a Verdict, not {verdict!r}")
    return "answers held to a schema, over both APIs"


async def langchain_errors(service: Service) -> str:
    for responses in (True, False):
        await refused(service, openai.NotFoundError, model="gpt-99", use_responses_api=responses)
        await refused(service, openai.AuthenticationError, api_key="sk-nobody", use_responses_api=responses)
        await refused(service, openai.BadRequestError, temperature=3, use_responses_api=responses)
    return "an unknown model, an unknown key and a wrong value are the client's own errors"


async def langchain_calls_a_tool(service: Service) -> str:
    for responses in (True, False):
        model = model_of(service, service.calls, use_responses_api=responses)
        for streams in (False, True):
            await loop(model, streams=streams)
    return "called, answered and spoken of, over both APIs, also streamed"


async def loop(model: ChatOpenAI, *, streams: bool) -> None:
    armed, messages = model.bind_tools([get_weather]), list[BaseMessage]([HumanMessage("Weather?")])
    called = await (gathered(armed, messages) if streams else armed.ainvoke(messages))
    [call] = called.tool_calls
    require_equal((call["name"], call["args"]), ("get_weather", {"city": "Rome"}), "the call")
    output = await get_weather.ainvoke(call)
    require(isinstance(output, ToolMessage), "a tool's message")
    messages += [called, output]
    answer = await (gathered(armed, messages) if streams else armed.ainvoke(messages))
    require(answer.text, "words after the output")
    require(not answer.tool_calls, "no second call")


async def gathered(model: ChatOpenAI, messages: list[BaseMessage]) -> AIMessage:
    whole: AIMessageChunk | None = None
    async for chunk in model.astream(messages):
        whole = chunk if whole is None else whole + chunk
    require(whole is not None, "chunks")
    return whole


async def refused(service: Service, kind: type[Exception], **more: object) -> None:
    try:
        await model_of(service, **more).ainvoke(QUESTIONS[0])
    except kind:
        return
    require(None, f"a {kind.__name__} for {more}")


if __name__ == "__main__":
    tries = (
        langchain_by_previous_response,
        langchain_on_a_conversation,
        langchain_chat,
        langchain_structured,
        langchain_errors,
    )
    sys.exit(main(__doc__, tries, (langchain_calls_a_tool,)))
