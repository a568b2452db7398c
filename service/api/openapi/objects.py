"""What /v1 answers with, as types: for the OpenAPI document, and held against real answers by its tests."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.api.schemas import Policy


class Shape(BaseModel):
    """Of an answer. A field with a default may be absent."""


class Error(Shape):
    message: str
    type: str
    param: str | None
    code: str | None
    differing_fields: list[str] = Field(default_factory=list)
    """Of code `revision_mismatch`."""
    conversations: list[str] = Field(default_factory=list)
    """Of code `conversations_pinned`: the first of them."""
    conversations_count: int = 0
    response_id: str = ""
    """Of a turn that was accepted, and failed."""


class ErrorAnswer(Shape):
    error: Error


class ForkOf(Shape):
    conversation: str
    after_response: str


class Conversation(Shape):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]
    alias: str
    on_upgrade: Policy | None
    fork_of: ForkOf | None


class DeletedConversation(Shape):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class InputText(Shape):
    type: Literal["input_text"]
    text: str


class TopLogprob(Shape):
    token: str
    logprob: float
    bytes: list[int]


class Logprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class OutputText(Shape):
    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]]
    logprobs: list[Logprob]


class Message(Shape):
    id: str
    type: Literal["message"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["user", "assistant", "system"]
    content: list[InputText | OutputText]


Status = Literal["in_progress", "completed", "incomplete"]


class FunctionCall(Shape):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str
    """JSON."""


class FunctionCallOutput(Shape):
    id: str
    type: Literal["function_call_output"]
    status: Status
    call_id: str
    output: str


class ReasoningText(Shape):
    type: Literal["reasoning_text"]
    text: str


class Reasoning(Shape):
    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


Item = Annotated[Message | FunctionCall | FunctionCallOutput | Reasoning, Field(discriminator="type")]
OutputItem = Annotated[Message | FunctionCall | Reasoning, Field(discriminator="type")]


class ItemList(Shape):
    object: Literal["list"]
    data: list[Item]
    has_more: bool
    first_id: str
    """Empty where `data` is."""
    last_id: str


class InputTokensDetails(Shape):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Shape):
    reasoning_tokens: int


class Usage(Shape):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class KvRefusal(Shape):
    reason: str
    differing_fields: list[str]


class Kv(Shape):
    source: Literal["reused", "rebuilt", "none"]
    reason: str | None
    plan: str | None
    contract: str | None
    tokens_loaded: int
    tokens_replayed: int
    refusal: KvRefusal | None


class ResponseError(Shape):
    code: str
    message: str


class IncompleteDetails(Shape):
    reason: str


class ConversationReference(Shape):
    id: str


class Response(Shape):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
    background: bool
    error: ResponseError | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ConversationReference
    reasoning: dict[str, Any] | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    frequency_penalty: Literal[0]
    presence_penalty: Literal[0]
    max_tool_calls: int | None
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str = ""
    """Absent where it was not sent."""
    usage: Usage | None
    """Null until there is an answer."""
    metadata: dict[str, str]
    revision: str | None
    """The digest of what answers, or answered."""
    revision_changed: bool
    """Since the conversation's answer before."""
    attempt: int
    kv: Kv


class DeletedResponse(Shape):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(Shape):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Model(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["everturn"]
    revision: str
    on_upgrade: Policy | None


class ModelList(Shape):
    object: Literal["list"]
    data: list[Model]


class CalledFunction(Shape):
    name: str
    arguments: str
    """JSON."""


class ChatCall(Shape):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Shape):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    annotations: list[dict[str, Any]]
    tool_calls: list[ChatCall] = Field(default_factory=list)


class ChatChoice(Shape):
    index: int
    message: ChatMessage
    logprobs: None
    finish_reason: str


class PromptTokensDetails(Shape):
    cached_tokens: int


class ChatUsage(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    """The digest of the revision that answered."""
    choices: list[ChatChoice]
    usage: ChatUsage


class ChatChunkChoice(Shape):
    index: int
    delta: dict[str, Any]
    logprobs: None
    finish_reason: str | None


class ChatCompletionChunk(Shape):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChunkChoice]
    usage: ChatUsage | None = None
