"""What clients may send to `/v1/chat/completions`, with every parameter either understood or refused by name."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from service.api.body import StrictBody, effective, parse
from service.api.items import parse_items
from service.api.schemas import wants_answer
from service.api.wants import parse_wants
from service.domain.errors import InvalidInput
from service.domain.new_items import NewItem, Wants

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
                [_flat(tool, "function") for tool in self.tools or ()],
                _flat(self.tool_choice, "function"),
                {"format": _flat(self.response_format, "json_schema")},
                parallel_tool_calls=self.parallel_tool_calls,
            )
        except InvalidInput as error:
            param = (error.param or "").replace("text.format", "response_format")
            raise InvalidInput(
                error.message.replace("text.format", "response_format"), param, error.code
            ) from error

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def parse_chat_body(document: Mapping[str, Any]) -> tuple[ChatBody, tuple[NewItem, ...]]:
    """Raises: InvalidInput: naming the parameter."""
    body = parse(ChatBody, effective(document, WITHOUT_EFFECT, REFUSED))
    messages = tuple(item for number, message in enumerate(body.messages) for item in _items(message, number))
    if not any(map(wants_answer, messages)):
        raise InvalidInput(
            "'messages' has neither text from a user nor what a tool gave back: there is nothing to answer.",
            "messages",
            "empty_input",
        )
    return body, messages


def _items(message: object, number: int) -> tuple[NewItem, ...]:
    """Each is a message of its own in Responses: what was said, and each call."""
    try:
        return parse_items(_as_response_items(message), "messages")
    except InvalidInput as error:
        first, _, rest = (error.param or "messages[0]").partition("]")
        param = f"messages[{number}]{rest}" if first.startswith("messages[") else error.param
        raise InvalidInput(
            error.message.replace(f"'{error.param}'", f"'{param}'"), param, error.code
        ) from error


def _flat(given: object, kind: str) -> object:
    """Chat completions put under a key of its own what Responses have beside the type."""
    if isinstance(given, dict) and isinstance(given.get(kind), dict):
        return {key: value for key, value in given.items() if key != kind} | given[kind]
    return given


def _as_response_items(message: object) -> list[object]:
    """Chat's text parts are called otherwise, and its answers carry empty fields of all kinds back."""
    if not isinstance(message, dict):
        return [message]
    kept = {key: value for key, value in message.items() if value is not None and value != []}
    if isinstance(kept.get("content"), list):
        kept["content"] = [
            part | {"type": "input_text"} if isinstance(part, dict) and part.get("type") == "text" else part
            for part in kept["content"]
        ]
    if kept.get("role") == "tool":
        more = {key: value for key, value in kept.items() if key not in {"role", "content", "tool_call_id"}}
        output = {"call_id": kept.get("tool_call_id"), "output": kept.get("content", "")}
        return [more | {"type": "function_call_output"} | output]
    calls = kept.pop("tool_calls", [])
    said = [kept] if kept.get("content") or not calls else []
    return [*said, *(_as_call(call) for call in calls)]


def _as_call(call: object) -> object:
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        return call
    flat = _flat(call, "function")
    assert isinstance(flat, dict)  # noqa: S101 as it was
    return {**flat, "type": "function_call", "call_id": call.get("id"), "id": None}
