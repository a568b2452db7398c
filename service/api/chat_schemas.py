"""What clients may send to `/v1/chat/completions`, with every parameter either understood or refused by name."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from service.api.body import StrictBody, effective, parse
from service.api.items import parse_items
from service.domain.errors import InvalidInput
from service.domain.events import Role
from service.domain.new_items import NewItem, NewMessage

WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "stop": ([],),
    "store": (False,),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
}
"""Values of OpenAI's other parameters that ask for what is done anyway; null does so for every one of them."""

REFUSED = frozenset(
    {"audio", "function_call", "moderation", "prediction", "prompt_cache_key", "prompt_cache_retention"}
    | {
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "top_logprobs",
        "user",
        "verbosity",
        "web_search_options",
    }
)


class StreamOptions(StrictBody):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatBody(StrictBody):
    model: str
    messages: list[Any] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def parse_chat_body(document: Mapping[str, Any]) -> tuple[ChatBody, tuple[NewItem, ...]]:
    """Raises: InvalidInput: naming the parameter."""
    body = parse(ChatBody, effective(document, WITHOUT_EFFECT, REFUSED))
    messages = parse_items([_as_response_item(one) for one in body.messages], "messages")
    if not any(isinstance(m, NewMessage) and m.role is Role.USER and m.text.strip() for m in messages):
        raise InvalidInput(
            "'messages' has no text from a user: there is nothing to answer.", "messages", "empty_input"
        )
    return body, messages


def _as_response_item(message: object) -> object:
    """Chat's text parts are called otherwise, and its answers carry empty fields of all kinds back."""
    if not isinstance(message, dict):
        return message
    kept = {key: value for key, value in message.items() if value is not None and value != []}
    if isinstance(kept.get("content"), list):
        kept["content"] = [
            part | {"type": "input_text"} if isinstance(part, dict) and part.get("type") == "text" else part
            for part in kept["content"]
        ]
    return kept
