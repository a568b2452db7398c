"""What a conversation is made of: kinds of items, the parts of an answer, and what a request wants beside words."""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import NewType

CallId = NewType("CallId", str)
"""Joins a function call and its output; the client hands it back as it was given."""


class ItemKind(StrEnum):
    MESSAGE = "message"
    FUNCTION_CALL = "function_call"
    FUNCTION_CALL_OUTPUT = "function_call_output"
    REASONING = "reasoning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One item of an answer, but for its id."""

    kind: ItemKind
    text: str
    """Of a message, of reasoning; of a call its arguments, as JSON that the model wrote."""
    call: CallId | None = None
    function: str = ""
    """That is called."""


def frame_digest(tools: str, instructions: str) -> str | None:
    """Of what stands in a prompt beside its items: only under the same one does a window begin the next prompt."""
    if not tools and not instructions:
        return None
    return sha256(f"{len(tools)} {tools}{instructions}".encode("utf-8", "surrogatepass")).hexdigest()
