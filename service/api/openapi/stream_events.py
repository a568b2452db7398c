"""What stands in the `data:` lines of streams, as types, for the OpenAPI document."""

from typing import Annotated, Any, Literal

from pydantic import Field

from service.api.openapi.objects import Logprob, OutputItem, OutputText, ReasoningText, Response, Shape


class Numbered(Shape):
    sequence_number: int
    """From 0, without a gap."""


class ResponseMoved(Numbered):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: Response


class ItemMoved(Numbered):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class InPart(Numbered):
    item_id: str
    output_index: int
    content_index: int


class PartMoved(InPart):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TextDelta(InPart):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[Logprob]


class TextDone(InPart):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[Logprob]


class ReasoningDelta(InPart):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDone(InPart):
    type: Literal["response.reasoning_text.done"]
    text: str


class InItem(Numbered):
    item_id: str
    output_index: int


class ArgumentsDelta(InItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(InItem):
    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class AttemptBegun(Numbered):
    """Ours: another attempt took over. OpenAI's clients pass over it."""

    type: Literal["everturn.attempt"]
    attempt: int
    revision: str


class RebuildAwaited(Numbered):
    """Ours: the revision has changed, and the attempt answers once the history's KV has been rebuilt. How far that is, comments say."""

    type: Literal["everturn.rebuild"]
    attempt: int
    rebuild: str
    revision: str
    previous_revision: str
    """Of the last answer before."""
    tokens_total: int
    """Of the history."""
    reason: str


ResponseStreamEvent = Annotated[
    ResponseMoved
    | ItemMoved
    | PartMoved
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | AttemptBegun
    | RebuildAwaited,
    Field(discriminator="type"),
]


class RecordedEvent(Shape):
    """One event of the log, in its global order. What was said is not in it."""

    cursor: str
    """To go on after it: as `after`, or as `Last-Event-ID`."""
    position: int
    tenant: str
    stream: str
    version: int
    type: str
    schema_number: int = Field(alias="schema")
    occurred_at: str
    payload: dict[str, Any]
    commitment: str | None
    chain: str


class RolloutEvent(Shape):
    """A recorded step of the rollout, with what `rollout.started` and its like carry; or its progress between two."""

    type: str
