"""What clients may send to `/v1/chat/completions`, with every parameter either understood or refused by name."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from service.api.body import StrictBody, effective, parse
from service.api.chat_messages import ChatItem, flat, parse_messages, renamed
from service.api.wants import ChatFunctionBody, parse_wants
from service.domain.errors import InvalidInput
from service.domain.new_items import Wants, wants_answer

WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "metadata": ({},),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "service_tier": ("auto", "default"),
    "stop": ([],),
    "store": (False,),
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
    include_obfuscation: Literal[False] | None = None


class ChatBody(StrictBody):
    model: str
    messages: list[Any] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    response_format: Any = None

    @property
    def wants(self) -> Wants:
        """Raises: InvalidInput: naming the field, as chat completions call it."""
        try:
            return parse_wants(
                [flat(tool, "function") for tool in self.tools or ()],
                flat(self.tool_choice, "function"),
                {"format": flat(self.response_format, "json_schema")},
                parallel_tool_calls=self.parallel_tool_calls,
                function=ChatFunctionBody,
            )
        except InvalidInput as error:
            raise renamed(error, self._as_sent(error.param or "")) from error

    def _as_sent(self, param: str) -> str:
        """Where a field was sent that Responses have beside the type."""
        if (found := re.fullmatch(r"tools\[(\d+)\]\.(.+)", param)) is not None:
            tool = (self.tools or [])[int(found[1])]
            return _placed(tool, f"tools[{found[1]}]", "function", found[2])
        place, _, name = param.partition("text.format")
        if place or not name:
            return "response_format" if param == "text.format" else param
        return _placed(self.response_format, "response_format", "json_schema", name.removeprefix("."))

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def parse_chat_body(document: Mapping[str, Any]) -> tuple[ChatBody, tuple[ChatItem, ...]]:
    """Raises: InvalidInput: naming the parameter."""
    body = parse(ChatBody, effective(document, WITHOUT_EFFECT, REFUSED))
    limits = {body.max_tokens, body.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise InvalidInput(
            "Mutually exclusive parameters: 'max_tokens' is what 'max_completion_tokens' was called before, "
            "and here they differ; give the latter alone.",
            "max_tokens",
            "mutually_exclusive_parameters",
        )
    messages = parse_messages(body.messages)
    if not any(wants_answer(message.item) for message in messages):
        raise InvalidInput(
            "'messages' has neither text from a user nor what a tool gave back: there is nothing to answer.",
            "messages",
            "empty_input",
        )
    return body, messages


def _placed(given: object, place: str, kind: str, name: str) -> str:
    """Args: kind: the key that what it is of stands under, all but its type."""
    outside = name == "type" or (isinstance(given, dict) and name in given)
    return f"{place}.{name}" if outside else f"{place}.{kind}.{name}"
