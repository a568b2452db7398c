"""Messages to token ids: whole, or only what follows stored ids; text that users wrote never becomes a control token."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from service.domain.errors import InvalidInput
from workers.kv_connector.fences import Fences

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Templates paste the role as it is, so it must not be free text."""
TEMPLATE_ERRORS = "jinja2"
"""The package whose errors say that a template refuses its messages."""


class Mode(StrEnum):
    FULL = "full"
    DELTA = "delta"


class Reason(StrEnum):
    NOTHING_CARRIED = "nothing_carried"
    CARRIED = "carried"
    TEMPLATE_NOT_APPEND_ONLY = "template_not_append_only"
    STOP_TOKEN_NOT_OF_TEMPLATE = "stop_token_not_of_template"  # noqa: S105 a reason, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    id: str
    name: str
    arguments: str
    """As the model wrote it: JSON, if all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    content: str
    reasoning: str | None = None
    calls: tuple[Call, ...] = ()
    call_id: str | None = None
    """Of the call whose output this is."""

    def for_template(self) -> dict[str, Any]:
        """As transformers' templates have it: arguments are objects there, and reasoning goes by one of two names."""
        more: dict[str, Any] = {}
        if self.reasoning is not None:
            more |= {"reasoning_content": self.reasoning, "reasoning": self.reasoning}
        if self.calls:
            more["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": _arguments(call.arguments)},
                }
                for call in self.calls
            ]
        if self.call_id is not None:
            more["tool_call_id"] = self.call_id
        return {"role": self.role, "content": self.content} | more


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Stored ids that cover the first `messages` messages; the last of them is the answer that ended in `last_token`."""

    messages: int
    last_token: int
    answer: str | None = None
    """What the model wrote, where the last message has it taken apart; None where it is its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    token_ids: tuple[int, ...]
    mode: Mode
    reason: Reason


def load_tokenizer(folder: str, *, trust_remote_code: bool = False, chat_template: str | None = None) -> Any:
    """Args: chat_template: a file, or the template itself, in place of the folder's."""
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=trust_remote_code
    )
    if chat_template is not None:
        file = Path(chat_template) if "{" not in chat_template else None
        tokenizer.chat_template = chat_template if file is None else file.read_text()
    return tokenizer


def render(
    tokenizer: Any,
    messages: Sequence[Message],
    carried: Carried | None,
    stop_token_ids: Sequence[int],
    tools: Sequence[Mapping[str, Any]] = (),
) -> Rendered:
    """The whole prompt, or, after `carried`, the ids to append to the stored ones.

    `tools` are as chat templates take them, and the same as those in a window that is carried.

    Raises:
        InvalidInput: naming the field; also where the template takes no tools, or refuses the messages.
    """
    _check(messages, carried)
    fences = Fences(tokenizer)
    turns = [message.for_template() for message in messages]
    written = [[value for key, value in turn.items() if key != "role"] for turn in turns]
    if fences.holds(written) or fences.holds(tools) or (carried and fences.holds(carried.answer)):
        turns = [turn | {k: fences.fenced(v) for k, v in turn.items() if k != "role"} for turn in turns]
        tools = fences.fenced(list(tools))
        carried = carried and replace(carried, answer=fences.fenced(carried.answer))
    _check_heard(tokenizer, turns, tools)
    if carried is None:
        prompt = render_turns(tokenizer, turns, tools)
        return Rendered(token_ids=fences.encode(prompt), mode=Mode.FULL, reason=Reason.NOTHING_CARRIED)
    delta = _delta(tokenizer, turns, tools, carried, stop_token_ids)
    if isinstance(delta, Reason):
        prompt = render_turns(tokenizer, turns, tools)
        return Rendered(token_ids=fences.encode(prompt), mode=Mode.FULL, reason=delta)
    return Rendered(token_ids=fences.encode(delta), mode=Mode.DELTA, reason=Reason.CARRIED)


def render_text(tokenizer: Any, messages: Sequence[Message]) -> str:
    """By the model's own template, with the prompt for the next answer."""
    return render_turns(tokenizer, [message.for_template() for message in messages], ())


def render_turns(
    tokenizer: Any, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> str:
    """Raises: InvalidInput: the template refuses them."""
    given = {"tools": list(tools)} if tools else {}
    try:
        text = tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True, **given)
    except Exception as error:
        if not type(error).__module__.startswith(TEMPLATE_ERRORS):
            raise
        raise InvalidInput(
            f"This model's chat template refuses the messages: {error}.", "messages"
        ) from error
    return str(text)


def _delta(
    tokenizer: Any,
    turns: list[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    carried: Carried,
    stop_token_ids: Sequence[int],
) -> str | Reason:
    """What follows the stored ids, or the reason why the template would not have gone on from them.

    The last answer stands here as the model wrote it, whatever the template makes of its function calls later.
    """
    last = carried.messages - 1
    answer = turns[last]["content"] if carried.answer is None else carried.answer
    said = [*turns[:last], {"role": "assistant", "content": answer}, *turns[carried.messages :]]
    try:
        prompt = render_turns(tokenizer, said, tools)
        covered = render_turns(tokenizer, turns[:last], tools) + answer
    except InvalidInput:
        if carried.answer is None:
            raise
        return Reason.TEMPLATE_NOT_APPEND_ONLY
    if not prompt.startswith(covered):
        return Reason.TEMPLATE_NOT_APPEND_ONLY
    start = len(covered)
    if carried.last_token in stop_token_ids:
        stop = tokenizer.convert_ids_to_tokens(carried.last_token)
        if not prompt.startswith(stop, start):
            return Reason.STOP_TOKEN_NOT_OF_TEMPLATE
        start += len(stop)
    return prompt[start:]


def _check(messages: Sequence[Message], carried: Carried | None) -> None:
    if not messages:
        raise InvalidInput("'messages' must hold at least one message.", "messages")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidInput(
                f"'messages.{index}.role' must be one of {', '.join(sorted(ROLES))}.",
                f"messages.{index}.role",
            )
    if carried is None:
        return
    if not 1 <= carried.messages <= len(messages):
        raise InvalidInput(f"'carried.messages' must be 1 to {len(messages)}.", "carried.messages")
    if messages[carried.messages - 1].role != "assistant":
        raise InvalidInput("The last carried message must be the assistant's.", "carried.messages")


def _check_heard(tokenizer: Any, turns: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> None:
    """A template may pass over what it does not know: the model would never have been told.

    Raises:
        InvalidInput: it passes over tools, or over function calls.
    """
    if not tools and not any("tool_calls" in turn for turn in turns):
        return
    prompt = render_turns(tokenizer, turns, tools)
    if tools and _same(tokenizer, prompt, turns, ()):
        raise InvalidInput(
            "This model's chat template takes no tools: the model would not learn of them. "
            "Use a model whose template does, or start its engine with one (--chat-template).",
            "tools",
        )
    without = [{key: value for key, value in turn.items() if key != "tool_calls"} for turn in turns]
    if without != turns and _same(tokenizer, prompt, without, tools):
        raise InvalidInput(
            "This model's chat template leaves function calls out: the model would not learn of them. "
            "Use a model whose template takes tools, or start its engine with one (--chat-template).",
            "tools",
        )


def _same(
    tokenizer: Any, prompt: str, turns: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> bool:
    try:
        return render_turns(tokenizer, turns, tools) == prompt
    except InvalidInput:
        return False


def _arguments(text: str) -> Any:
    """What is no object stays text: the model, or the client, wrote something else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
