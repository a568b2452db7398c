"""LiteLLM as a client, unmodified, against a running service: `make clients`, in an environment of its own.

It stands on another version of the official client than the rest do. One line a try; exits 1 if one fails.
"""

import json
import sys

import litellm
from client_tries import LIMIT, MODEL, QUESTIONS, WEATHER, Service, main, require, require_equal
from openai import AsyncOpenAI

FUNCTION = {
    "name": "get_weather",
    "description": "Says what the weather is in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ENDS = ("response.completed", "response.incomplete")


def place(service: Service, model: str = MODEL, **more: object) -> dict[str, object]:
    return {
        "model": f"openai/{model}",
        "api_base": service.url,
        "api_key": service.key,
        "temperature": 0,
        **more,
    }


async def litellm_responses(service: Service) -> str:
    """Continues by previous_response_id, whose ids LiteLLM wraps into its own."""
    at = place(service, max_output_tokens=LIMIT)
    first = await litellm.aresponses(input=QUESTIONS[0], **at)
    second = await litellm.aresponses(input=QUESTIONS[1], previous_response_id=first.id, **at)
    require(text(first) and text(second), "an answer to each question")
    require(
        second.usage.input_tokens >= first.usage.total_tokens,
        "the second prompt to go on from the first turn",
    )
    stream = await litellm.aresponses(input=QUESTIONS[2], previous_response_id=second.id, stream=True, **at)
    events = [event async for event in stream]
    kinds = [str(getattr(event.type, "value", event.type)) for event in events]
    require(kinds[-1] in ENDS, f"a stream that ends, not {kinds[-1:]}")
    last = events[-1].response
    pieces = [event.delta for event, kind in zip(events, kinds, strict=True) if kind.endswith("text.delta")]
    require_equal("".join(pieces), text(last), "what was streamed")
    require(str(last.revision).startswith("rev_"), "our own fields beside OpenAI's")
    async with AsyncOpenAI(base_url=service.url, api_key=service.key) as client:
        items = [item async for item in client.conversations.items.list(last.conversation["id"], order="asc")]
    said = [QUESTIONS[0], text(first), QUESTIONS[1], text(second), QUESTIONS[2], text(last)]
    require_equal([item.content[0].text for item in items], said, "the conversation's words")
    require_equal(len({item.id for item in items}), len(said), "the number of ids")
    return "three turns by previous_response_id, one streamed; `revision` is passed on"


async def litellm_completions(service: Service) -> str:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    at = place(service, messages=messages, max_tokens=LIMIT)
    answer = await litellm.acompletion(**at)
    require(answer.choices[0].message.content, "an answer")
    require(answer.usage.total_tokens, "its usage")
    stream = await litellm.acompletion(stream=True, **at)
    words = [chunk.choices[0].delta.content or "" async for chunk in stream]
    require_equal("".join(words), answer.choices[0].message.content, "what was streamed")
    return "one chat completion, and the same one streamed"


async def litellm_errors(service: Service) -> str:
    await refused(place(service, "gpt-99"), litellm.NotFoundError, "gpt-99")
    await refused(place(service, api_key="sk-nobody"), litellm.AuthenticationError, "key")
    await refused(place(service, temperature=3), litellm.BadRequestError, "temperature")
    return "an unknown model, an unknown key and a wrong value are its own errors, over both APIs"


async def litellm_calls_a_tool(service: Service) -> str:
    tools = [{"type": "function", "function": FUNCTION}]
    messages: list[object] = [{"role": "user", "content": "Weather?"}]
    at = place(service, service.calls, tools=tools, max_tokens=LIMIT)
    called = (await litellm.acompletion(messages=messages, **at)).choices[0].message
    [call] = called.tool_calls
    check(call.function.name, call.function.arguments)
    messages += [called, {"role": "tool", "tool_call_id": call.id, "content": WEATHER}]
    answer = (await litellm.acompletion(messages=messages, **at)).choices[0].message
    require(answer.content and not answer.tool_calls, "words after the output")
    return "called, answered and spoken of"


async def litellm_calls_a_tool_over_responses(service: Service) -> str:
    at = place(service, service.calls, tools=[{"type": "function", **FUNCTION}], max_output_tokens=LIMIT)
    called = await litellm.aresponses(input="Weather?", **at)
    [call] = [item for item in called.output if item.type == "function_call"]
    check(call.name, call.arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
    answer = await litellm.aresponses(input=[output], previous_response_id=called.id, **at)
    require(text(answer), "words after the output")
    return "called, answered and spoken of"


def check(function: str, arguments: str) -> None:
    require_equal((function, json.loads(arguments)), ("get_weather", {"city": "Rome"}), "the call")


async def refused(at: dict[str, object], kind: type[Exception], named: str) -> None:
    completion = {"messages": [{"role": "user", "content": "x"}]}
    for ask, said in ((litellm.aresponses, {"input": "x"}), (litellm.acompletion, completion)):
        try:
            await ask(**said, **at)
        except kind as error:
            require(named in str(error), f"'{named}' in '{error}'")
        else:
            require(None, f"a {kind.__name__}")


def text(response: "litellm.ResponsesAPIResponse") -> str:
    return "".join(part.text for item in response.output for part in getattr(item, "content", None) or ())


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    tries = (litellm_responses, litellm_completions, litellm_errors)
    sys.exit(main(__doc__, tries, (litellm_calls_a_tool, litellm_calls_a_tool_over_responses)))
