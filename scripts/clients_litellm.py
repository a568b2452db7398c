"""LiteLLM as a client, unmodified, against a running service: `make clients`, in an environment of its own.

It stands on another version of the official client than the rest do. One line a try; exits 1 if one fails.
"""

import argparse
import asyncio
import json
import sys
import traceback
from pathlib import Path

import litellm

MODEL = "openai/production"
QUESTIONS = ("What is the capital of France?", "And of Italy?")


async def responses(url: str, key: str) -> str:
    """Continues by previous_response_id, whose ids LiteLLM wraps into its own."""
    place = {"model": MODEL, "api_base": url, "api_key": key}
    first = await litellm.aresponses(input=QUESTIONS[0], **place)
    _require(_text(first), "an answer")
    second = await litellm.aresponses(input=QUESTIONS[1], previous_response_id=first.id, **place)
    _require(_text(second), "an answer to what follows it")
    stream = await litellm.aresponses(
        input="Say it again.", previous_response_id=second.id, stream=True, **place
    )
    kinds = [str(getattr(event.type, "value", event.type)) async for event in stream]
    _require(kinds[-1:] == ["response.completed"], f"a completed stream, not {kinds[-1:]}")
    return "three turns by previous_response_id, one streamed"


async def completions(url: str, key: str) -> str:
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    place = {"model": MODEL, "messages": messages, "api_base": url, "api_key": key}
    answer = await litellm.acompletion(**place)
    _require(answer.choices[0].message.content, "an answer")
    _require(answer.usage.total_tokens, "its usage")
    stream = await litellm.acompletion(stream=True, **place)
    words = [chunk.choices[0].delta.content or "" async for chunk in stream]
    _require("".join(words), "streamed text")
    return "one chat completion, one streamed"


async def errors(url: str, key: str) -> str:
    try:
        await litellm.aresponses(input="x", model="openai/gpt-99", api_base=url, api_key=key)
    except litellm.NotFoundError as error:
        _require("gpt-99" in str(error), "the model's name in the error")
    else:
        _require(None, "an unknown model to be not found")
    return "an unknown model is its NotFoundError"


def _text(response: "litellm.ResponsesAPIResponse") -> str:
    return "".join(part.text for item in response.output for part in getattr(item, "content", None) or ())


def _require(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(f"expected {what}")


async def try_all(url: str, key: str) -> int:
    failed = False
    for attempt in (responses, completions, errors):
        try:
            print(f"ok      litellm {attempt.__name__}: {await attempt(url, key)}")
        except Exception:  # noqa: BLE001 whatever the client raises is the finding
            failed = True
            print(f"FAILED  litellm {attempt.__name__}\n{traceback.format_exc()}")
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--keys", type=Path, default=Path(".everturn/keys.json"))
    chosen = parser.parse_args()
    try:
        key = json.loads(chosen.keys.read_text("utf-8"))["tenant_key"]
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(
            f"clients: no tenant's key in {chosen.keys}: {error!r}. Start the stack with `make up`.\n"
        )
        return 1
    litellm.suppress_debug_info = True
    return asyncio.run(try_all(chosen.url, key))


if __name__ == "__main__":
    sys.exit(main())
