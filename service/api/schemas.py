"""What clients may send to /v1, with every parameter either understood or refused by name."""

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Any, Literal

from pydantic import Field

from service.api.body import StrictBody, effective, parse
from service.api.items import parse_items
from service.api.wants import parse_wants
from service.domain import canonical
from service.domain.errors import InvalidInput
from service.domain.events import ConversationId
from service.domain.new_items import LABELS, NewItem, Wants, wants_answer

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
"""What OpenAI can add to items. Log-probabilities are given; reasoning is told in clear, and never encrypted; the others
belong to kinds of items that there are none of here."""

LOGPROBS = "message.output_text.logprobs"

Policy = Literal["replay", "stay", "stay_strict"]

MAX_INITIAL_ITEMS = 20
MAX_CACHE_KEY = 512

WITHOUT_EFFECT: Mapping[str, tuple[object, ...]] = {
    "reasoning": ({},),
    "service_tier": ("auto", "default"),
    "store": (True,),
    "stream_options": ({}, {"include_obfuscation": False}),
}
"""Values of OpenAI's other parameters that ask for what is done anyway; null does so for every one of them."""

REFUSED = frozenset(
    {
        "context_management",
        "moderation",
        "prompt",
        "prompt_cache_options",
        "prompt_cache_retention",
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
    metadata: Metadata | None


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
    background: bool | None = None
    max_output_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    include: list[Include] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    metadata: Metadata | None = None
    on_upgrade: Policy | None = None
    revision: str | None = None
    truncation: Literal["auto", "disabled"] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: Any = None
    max_tool_calls: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """Of tools that the service itself would call: there are none, so no answer has more."""
    prompt_cache_key: str | None = Field(default=None, max_length=MAX_CACHE_KEY)
    safety_identifier: str | None = Field(default=None, max_length=64)
    user: str | None = Field(default=None, max_length=MAX_CACHE_KEY)

    @property
    def logprobs(self) -> int | None:
        """How many candidates beside each token; None where no log-probabilities are asked for, by either parameter."""
        return (self.top_logprobs or 0) if self.top_logprobs or LOGPROBS in (self.include or ()) else None

    @property
    def wants(self) -> Wants:
        """Raises: InvalidInput: naming the field."""
        wants = parse_wants(
            self.tools, self.tool_choice, self.text, parallel_tool_calls=self.parallel_tool_calls
        )
        labels = {name: value for name in LABELS if (value := getattr(self, name)) is not None}
        return replace(wants, labels=json.dumps(labels)) if labels else wants

    @property
    def goes_on(self) -> bool:
        return self.conversation is not None or self.previous_response_id is not None

    @property
    def conversation_id(self) -> str | None:
        """Raises: InvalidInput: neither an id nor an object that has one."""
        if self.conversation is None:
            return None
        if isinstance(self.conversation, str):
            return named_conversation(self.conversation, "conversation")
        if not isinstance(self.conversation, dict) or not isinstance(self.conversation.get("id"), str):
            raise InvalidInput(
                "'conversation' must be a conversation's id, or an object with its 'id'.", "conversation"
            )
        return named_conversation(parse(ConversationReference, self.conversation).id, "conversation.id")


def named_conversation(text: str, param: str = "conversation_id") -> ConversationId:
    """Raises: InvalidInput: it can be no conversation's id."""
    if not text.startswith("conv_"):
        raise InvalidInput(f"Invalid '{param}': '{text}'. A conversation's id begins with 'conv_'.", param)
    return ConversationId(text)


def parse_response_body(document: Mapping[str, Any]) -> ResponseBody:
    """Raises: InvalidInput: naming the parameter."""
    if document.get("background") is True and document.get("store") is False:
        raise InvalidInput(
            "'background' needs 'store' to be true: the response is read later.",
            "background",
            "unsupported_parameter",
        )
    body = parse(ResponseBody, effective(document, WITHOUT_EFFECT, REFUSED))
    if body.conversation is not None and body.previous_response_id is not None:
        raise InvalidInput(
            "Mutually exclusive parameters: 'previous_response_id' and 'conversation' each name the history by itself; "
            "give one of them.",
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


def parse_input(value: object, *, goes_on: bool) -> tuple[NewItem, ...]:
    """Args:
        value: a string, or a list of items.
        goes_on: with a conversation, in which something may wait for an answer already.

    Raises:
        InvalidInput: naming the part.
    """
    if value is None:
        if goes_on:
            return ()
        raise InvalidInput("Missing required parameter: 'input'.", "input", "missing_required_parameter")
    said = isinstance(value, str)
    if said:
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise InvalidInput("'input' must be a string or a list of items.", "input")
    items = parse_items(value, "input")
    if not any(map(wants_answer, items)) and (said or not goes_on):
        raise InvalidInput(
            "'input' has neither text from a user nor the output of a function call: there is nothing to answer.",
            "input",
            "empty_input",
        )
    return items
