"""What clients may send to /v1, with every parameter either understood or refused by name."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field

from service.api.body import StrictBody, effective, param_name, parse
from service.conversation_flow import NewMessage
from service.domain import canonical
from service.domain.errors import InvalidInput
from service.domain.events import Role

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
Include = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""What OpenAI can add to items. All but log-probabilities belong to kinds of items that there are none of here."""

LOGPROBS = "message.output_text.logprobs"

Policy = Literal["replay", "stay", "stay_strict"]

MAX_INITIAL_ITEMS = 20

WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "parallel_tool_calls": (True,),
    "reasoning": (),
    "service_tier": ("auto", "default"),
    "store": (True,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "text": ({}, {"format": {"type": "text"}}),
    "tool_choice": ("auto", "none"),
    "tools": ([],),
}
"""Values of OpenAI's other parameters that ask for what is done anyway; null does so for every one of them."""

REFUSED = frozenset(
    {
        "context_management",
        "max_tool_calls",
        "moderation",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "user",
    }
)


class ForkBody(StrictBody):
    conversation: str
    after_response: str | None = None


class ConversationBody(StrictBody):
    metadata: Metadata | None = None
    items: list[Any] | None = Field(default=None, max_length=MAX_INITIAL_ITEMS)
    alias: str | None = None
    on_upgrade: Policy | None = None
    fork_of: ForkBody | None = None


class ConversationUpdateBody(StrictBody):
    metadata: Metadata


class ItemsBody(StrictBody):
    items: list[Any] = Field(min_length=1, max_length=MAX_INITIAL_ITEMS)


class ConversationReference(StrictBody):
    id: str


class ResponseBody(StrictBody):
    input: Any = None
    model: str | None = None
    conversation: Any = None
    previous_response_id: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    include: list[Include] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    metadata: Metadata | None = None
    on_upgrade: Policy | None = None
    revision: str | None = None
    truncation: Literal["auto", "disabled"] | None = None

    @property
    def logprobs(self) -> int | None:
        """How many candidates beside each token; None where none are asked for."""
        return (self.top_logprobs or 0) if LOGPROBS in (self.include or ()) else None

    @property
    def conversation_id(self) -> str | None:
        """Raises: InvalidInput: neither an id nor an object that has one."""
        if self.conversation is None or isinstance(self.conversation, str):
            return self.conversation
        if not isinstance(self.conversation, dict) or not isinstance(self.conversation.get("id"), str):
            raise InvalidInput(
                "'conversation' must be a conversation's id, or an object with its 'id'.", "conversation"
            )
        return parse(ConversationReference, self.conversation).id


def parse_response_body(document: Mapping[str, Any]) -> ResponseBody:
    """Raises: InvalidInput: naming the parameter."""
    body = parse(ResponseBody, effective(document, WITHOUT_EFFECT, REFUSED))
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise InvalidInput(
            f"'top_logprobs' adds to log-probabilities that were not asked for: pass include=['{LOGPROBS}'] too.",
            "top_logprobs",
        )
    if body.conversation is not None and body.previous_response_id is not None:
        raise InvalidInput(
            "'previous_response_id' cannot be used with 'conversation': each names the history by itself.",
            "previous_response_id",
            "mutually_exclusive_parameters",
        )
    return body


COUNTED = frozenset(
    {
        "conversation",
        "input",
        "instructions",
        "model",
        "parallel_tool_calls",
        "previous_response_id",
        "reasoning",
    }
    | {"text", "tool_choice", "tools", "truncation"}
)


def parse_count_body(document: Mapping[str, Any]) -> ResponseBody:
    """Of what a response can be asked with, what decides its prompt.

    Raises:
        InvalidInput: naming the parameter.
    """
    for name in document:
        if name not in COUNTED:
            raise InvalidInput(f"Unknown parameter: '{name}'.", name, "unknown_parameter")
    return parse_response_body(document)


def request_hash(document: Mapping[str, Any]) -> str:
    """What an idempotency key is tied to: the body's values, in whatever order they were written."""
    return sha256(canonical.encode(document)).hexdigest()


def parse_input(value: object) -> tuple[NewMessage, ...]:
    """A string, or a list of messages with text parts.

    Raises:
        InvalidInput: naming the part.
    """
    if value is None:
        raise InvalidInput("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise InvalidInput("'input' must be a string or a list of messages.", "input")
    if not value:
        raise InvalidInput("'input' is empty: there is nothing to answer.", "input", "empty_input")
    messages = parse_messages(value, "input")
    if not any(m.text.strip() for m in messages if m.role is Role.USER):
        raise InvalidInput(
            "'input' has no text from a user: there is nothing to answer.", "input", "empty_input"
        )
    return messages


def parse_messages(items: list[Any], param: str) -> tuple[NewMessage, ...]:
    """Raises: InvalidInput: naming the part."""
    return tuple(_message(item, (param, number)) for number, item in enumerate(items))


_ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM, "developer": Role.SYSTEM}
_TEXT_PARTS = {
    "input_text": {"type", "text"},
    # What a client echoes of an answer that it got from us.
    "output_text": {"type", "text", "annotations", "logprobs"},
}


def _message(item: object, path: tuple[str | int, ...]) -> NewMessage:
    if not isinstance(item, dict):
        raise InvalidInput(f"'{param_name(path)}' must be a message object.", param_name(path))
    if (kind := item.get("type", "message")) != "message":
        name = param_name((*path, "type"))
        raise InvalidInput(
            f"'{name}' is {kind!r}; only messages of text are supported.", name, "unsupported_item"
        )
    for key in item:
        if key not in {"type", "role", "content", "id", "status"} and item[key] is not None:
            name = param_name((*path, key))
            raise InvalidInput(f"Unsupported parameter: '{name}'.", name, "unsupported_parameter")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        name = param_name((*path, "role"))
        raise InvalidInput(f"'{name}' must be one of {', '.join(_ROLES)}.", name)
    return NewMessage(role=_ROLES[role], text=_text(item.get("content"), (*path, "content")))


def _text(content: object, path: tuple[str | int, ...]) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        name = param_name(path)
        raise InvalidInput(f"'{name}' must be a string or a list of text parts.", name)
    return "\n".join(_part(part, (*path, number)) for number, part in enumerate(content))


def _part(part: object, path: tuple[str | int, ...]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _TEXT_PARTS:
        name = param_name((*path, "type"))
        raise InvalidInput(
            f"'{name}' is {kind!r}; only 'input_text' and 'output_text' are supported.",
            name,
            "unsupported_item",
        )
    for key in part:
        if key not in _TEXT_PARTS[kind] and part[key] is not None:
            name = param_name((*path, key))
            raise InvalidInput(f"Unsupported parameter: '{name}'.", name, "unsupported_parameter")
    if not isinstance(part.get("text"), str):
        name = param_name((*path, "text"))
        raise InvalidInput(f"'{name}' must be a string.", name)
    text: str = part["text"]
    return text
