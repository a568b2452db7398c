"""LiteLLM as a client, unmodified, against a running service: `make clients`, in an environment of its own.

It stands on another version of the official client than the rest do. One line a try; exits 1 if one fails.
"""

import sys

import litellm
from client_tries import main, require

MODEL = "openai/production"
QUESTIONS = ("What is the capital of France?", "And of Italy?")


async def litellm_responses(url: str, key: str) -> str:
    """Continues by previous_response_id, whose ids LiteLLM wraps into its own."""
    place = {"model": MODEL, "api_base": url, "api_key": key}
    first = await litellm.aresponses(input=QUESTIONS[0], **place)
    require(_text(first), "an answer")
    second = await litellm.aresponses(input=QUESTIONS[1], previous_response_id=first.id, **place)
    require(_text(second), "an answer to what follows it")
    stream = await litellm.aresponses(
        input="Say it again.", previous_response_id=second.id, stream=True, **place
    )
    kinds = [str(getattr(event.type, "value", event.type)) async for event in stream]
    require(kinds[-1:] == ["response.completed"], f"a completed stream, not {kinds[-1:]}")
    return "three turns by previous_response_id, one streamed"


async def litellm_completions(url: str, key: str) -> str:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    place = {"model": MODEL, "messages": messages, "api_base": url, "api_key": key}
    answer = await litellm.acompletion(**place)
    require(answer.choices[0].message.content, "an answer")
    require(answer.usage.total_tokens, "its usage")
    stream = await litellm.acompletion(stream=True, **place)
    words = [chunk.choices[0].delta.content or "" async for chunk in stream]
    require("".join(words), "streamed text")
    return "one chat completion, one streamed"


async def litellm_errors(url: str, key: str) -> str:
    try:
        await litellm.aresponses(input="x", model="openai/gpt-99", api_base=url, api_key=key)
    except litellm.NotFoundError as error:
        require("gpt-99" in str(error), "the model's name in the error")
    else:
        require(None, "an unknown model to be not found")
    return "an unknown model is its NotFoundError"


def _text(response: "litellm.ResponsesAPIResponse") -> str:
    return "".join(part.text for item in response.output for part in getattr(item, "content", None) or ())


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    sys.exit(main(__doc__, (litellm_responses, litellm_completions, litellm_errors)))
