"""What bodies take where their models leave it open, because errors name such a part better when it is read by hand."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.api import chat_schemas, schemas
from service.api.admin import AdaptersBody, EngineBody, RevisionBody
from service.api.body import StrictBody
from service.api.chat_schemas import ChatBody
from service.api.items import LONGEST_CALL_ID, LONGEST_NAME
from service.api.schemas import ConversationBody, ItemsBody, ResponseBody
from service.api.wants import MOST_TOOLS, FunctionName, Name

Json = dict[str, Any]

NULL: Json = {"type": "null"}


class Part(BaseModel):
    """A field that is null is taken for absent."""

    model_config = {"json_schema_extra": {"additionalProperties": NULL}}


class TextPart(Part):
    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: Any = None


class InputMessage(Part):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    id: Any = None
    status: Any = None


class InputCall(Part):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1, max_length=LONGEST_CALL_ID)
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    arguments: str
    id: Any = None
    status: Any = None


class InputCallOutput(Part):
    type: Literal["function_call_output"]
    call_id: str = Field(min_length=1, max_length=LONGEST_CALL_ID)
    output: str | list[TextPart]
    id: Any = None
    status: Any = None


class ReasoningPart(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class SummaryPart(BaseModel):
    type: Literal["summary_text"]
    text: str


class InputReasoning(Part):
    type: Literal["reasoning"]
    content: list[ReasoningPart] | None = None
    summary: list[SummaryPart] | None = None
    id: Any = None
    status: Any = None


InputItem = InputMessage | InputCall | InputCallOutput | InputReasoning


class Function(Part):
    """A tool. Null is taken for absent in it, too."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(BaseModel):
    model_config = {"extra": "forbid"}
    type: Literal["function"]
    name: str


class PlainFormat(BaseModel):
    model_config = {"extra": "forbid"}
    type: Literal["text", "json_object"]


class SchemaFormat(Part):
    type: Literal["json_schema"]
    name: Name
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class TextForm(Part):
    format: PlainFormat | SchemaFormat | None = None


class ChatTextPart(Part):
    type: Literal["text"]
    text: str


class ChatCalledFunction(BaseModel):
    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    arguments: str


class ChatInputCall(BaseModel):
    id: str = Field(min_length=1, max_length=LONGEST_CALL_ID)
    type: Literal["function"] = "function"
    function: ChatCalledFunction


Said = str | Annotated[list[ChatTextPart], Field(min_length=1)]


class ChatInputMessage(Part):
    role: Literal["user", "assistant", "system", "developer"]
    content: Said


class ChatInputCalls(Part):
    role: Literal["assistant"]
    content: Said | None = None
    tool_calls: list[ChatInputCall] = Field(min_length=1)


class ChatInputToolAnswer(Part):
    role: Literal["tool"]
    tool_call_id: str = Field(min_length=1, max_length=LONGEST_CALL_ID)
    content: str | list[ChatTextPart]


class ChatFunction(BaseModel):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatTool(BaseModel):
    type: Literal["function"]
    function: ChatFunction


class ChosenName(BaseModel):
    name: str


class ChatChosenFunction(BaseModel):
    type: Literal["function"]
    function: ChosenName


class ChatSchema(BaseModel):
    name: Name
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ChatSchemaFormat(BaseModel):
    type: Literal["json_schema"]
    json_schema: ChatSchema


class ConversationId(BaseModel):
    model_config = {"extra": "forbid"}
    id: str


class Descriptor(BaseModel):
    """As an engine measures itself."""

    model_config = {"extra": "forbid"}
    kv: dict[str, Any]
    text: dict[str, Any]


class NamedAdapter(BaseModel):
    model_config = {"extra": "forbid"}
    model: str = Field(min_length=1)
    adapter: str = Field(pattern="^[0-9a-f]{64}$")
    revision: str


class UnnamedAdapter(BaseModel):
    """One whose bytes nobody vouches for."""

    model_config = {"extra": "forbid"}
    model: str = Field(min_length=1)
    reason: str = Field(min_length=1)


class InputTokensBody(ResponseBody):
    """Of a response's body what decides its prompt."""


OF_RESPONSES = {
    "input": str | list[InputItem],
    "tools": Annotated[list[Function], Field(max_length=MOST_TOOLS)],
    "tool_choice": Literal["none", "auto", "required"] | ChosenFunction | None,
    "text": TextForm | None,
    "conversation": str | ConversationId | None,
}
REFINED: dict[type[StrictBody], dict[str, Any]] = {
    ResponseBody: OF_RESPONSES,
    InputTokensBody: OF_RESPONSES,
    ConversationBody: {"items": list[InputItem]},
    ItemsBody: {"items": list[InputItem]},
    ChatBody: {
        "messages": list[ChatInputMessage | ChatInputCalls | ChatInputToolAnswer],
        "tools": Annotated[list[ChatTool], Field(max_length=MOST_TOOLS)],
        "tool_choice": Literal["none", "auto", "required"] | ChatChosenFunction | None,
        "response_format": PlainFormat | ChatSchemaFormat | None,
    },
    RevisionBody: {"descriptor": Descriptor},
    EngineBody: {"descriptor": Descriptor},
    AdaptersBody: {"adapters": list[NamedAdapter | UnnamedAdapter]},
}
"""By the fields of bodies; what else is said of such a field, as how many it takes, still holds."""

TAKEN_WITHOUT_EFFECT: dict[type[StrictBody], tuple[Mapping[str, tuple[object, ...]], frozenset[str]]] = {
    ResponseBody: (schemas.WITHOUT_EFFECT, schemas.REFUSED),
    InputTokensBody: (schemas.WITHOUT_EFFECT, schemas.REFUSED),
    ChatBody: (chat_schemas.WITHOUT_EFFECT, chat_schemas.REFUSED),
}
"""Of OpenAI's parameters those that are taken with some values or with null only."""


def as_taken(kind: type[StrictBody], schema: Json) -> Json:
    """Of a body whose nulls are dropped before it is read, and which knows more parameters than it heeds."""
    if kind not in TAKEN_WITHOUT_EFFECT:
        return schema
    values, refused = TAKEN_WITHOUT_EFFECT[kind]
    heeded = schema["properties"]
    required = schema.get("required", ())
    taken = {name: inner if name in required else or_null(inner) for name, inner in heeded.items()}
    taken |= {name: {"enum": [*values[name], None]} for name in sorted(values) if name not in heeded}
    taken |= {name: NULL for name in sorted(refused) if name not in heeded}
    if kind is not InputTokensBody:
        return schema | {"properties": taken, "additionalProperties": NULL}
    counted = {name: inner for name, inner in taken.items() if name in schemas.COUNTED}
    return schema | {"properties": counted}


def or_null(schema: Json) -> Json:
    return schema if NULL in schema.get("anyOf", ()) else {"anyOf": [schema, NULL]}
