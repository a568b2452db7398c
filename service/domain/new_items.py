"""What a client says before it has an id, and the event that accepts it under one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from service.domain.events import (
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemAccepted,
    ItemId,
    MessageAccepted,
    ReasoningAccepted,
    Role,
)
from service.domain.items import CallId

NewId = Callable[[str], str]
"""A fresh id under the given prefix."""

LABELS = ("max_tool_calls", "prompt_cache_key", "safety_identifier", "user")
"""What a request may say of itself: it changes nothing of the answer, is recorded with the turn, and told back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCall:
    call: CallId
    function: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOutput:
    call: CallId
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReasoning:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """What a request asks for beside words; each is JSON as the client sent it, or empty. `labels` has those of LABELS that it gave."""

    tools: str = ""
    tool_choice: str = ""
    text_format: str = ""
    parallel_tool_calls: bool = True
    labels: str = ""


NOTHING_WANTED = Wants()
NewItem = NewMessage | NewCall | NewOutput | NewReasoning


def wants_answer(new: NewItem) -> bool:
    return isinstance(new, NewOutput) or (
        isinstance(new, NewMessage) and new.role is Role.USER and bool(new.text.strip())
    )


def accept_item(new: NewItem, new_id: NewId) -> ItemAccepted:
    match new:
        case NewMessage():
            return MessageAccepted(item=ItemId(new_id("msg_")), role=new.role, text=new.text)
        case NewCall():
            item = ItemId(new_id("fc_"))
            return FunctionCallAccepted(
                item=item, call=new.call, function=new.function, arguments=new.arguments
            )
        case NewOutput():
            return FunctionCallOutputAccepted(item=ItemId(new_id("fco_")), call=new.call, output=new.output)
        case NewReasoning():
            return ReasoningAccepted(item=ItemId(new_id("rs_")), text=new.text)
        case _:
            assert_never(new)
