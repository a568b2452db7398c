"""Two frameworks that many apps stand on, unmodified, against a running service: `make clients`.

Runs in a virtual environment of its own, which scripts/clients.sh makes. One line a client; exits 1 if one fails.
"""

import sys

from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, set_tracing_disabled
from client_tries import main, require
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI

QUESTIONS = ("What is the capital of France?", "And of Italy?")


async def agents_with_a_session(url: str, key: str) -> str:
    """The session is a conversation of ours; the agent reads it before each turn and adds to it afterwards."""
    async with AsyncOpenAI(base_url=url, api_key=key) as client:
        agent = Agent(name="one", model=OpenAIResponsesModel(model="production", openai_client=client))
        session = OpenAIConversationsSession(openai_client=client)
        for question in QUESTIONS:
            result = await Runner.run(agent, question, session=session)
            require(result.final_output, "an answer")
        streamed = Runner.run_streamed(agent, "Say it again.", session=session)
        kinds = [event.type async for event in streamed.stream_events()]
        require(kinds, "events")
        items = await session.get_items()
        require(len(items) == 2 * len(QUESTIONS) + 2, f"six items, not {len(items)}")
        await session.pop_item()
        require(len(await session.get_items()) == len(items) - 1, "one item less")
        await session.clear_session()
    return "three turns, one streamed; an item taken back; the session cleared"


async def langchain_responses(url: str, key: str) -> str:
    """Continues by previous_response_id, as LangChain does it."""
    model = ChatOpenAI(
        model="production", base_url=url, api_key=key, use_responses_api=True, use_previous_response_id=True
    )
    messages: list[object] = []
    for question in QUESTIONS:
        messages.append(("user", question))
        answer = await model.ainvoke(messages)
        require(answer.text, "an answer")
        require(answer.response_metadata.get("id"), "the response's id")
        messages.append(answer)
    chunks = [chunk async for chunk in model.astream([*messages, ("user", "Say it again.")])]
    require("".join(chunk.text for chunk in chunks), "streamed text")
    return "three turns by previous_response_id, one streamed"


async def langchain_chat(url: str, key: str) -> str:
    model = ChatOpenAI(model="production", base_url=url, api_key=key, use_responses_api=False)
    require((await model.ainvoke(QUESTIONS[0])).text, "an answer")
    chunks = [chunk async for chunk in model.astream(QUESTIONS[0])]
    require("".join(chunk.text for chunk in chunks), "streamed text")
    return "one chat completion, one streamed"


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    sys.exit(main(__doc__, (agents_with_a_session, langchain_responses, langchain_chat)))
