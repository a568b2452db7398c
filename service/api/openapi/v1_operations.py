"""The routes under /v1, for the OpenAPI document."""

from collections.abc import Mapping
from typing import get_args

from service.api.chat_schemas import ChatBody
from service.api.openapi import objects
from service.api.openapi.inputs import InputTokensBody
from service.api.openapi.operation import Json, Operation
from service.api.openapi.stream_events import ResponseStreamEvent
from service.api.schemas import (
    ConversationBody,
    ConversationUpdateBody,
    Include,
    ItemsBody,
    Policy,
    ResponseBody,
)
from service.api.terms import LONGEST_DEADLINE_S
from service.domain.terms import OnDisconnect

DIGEST: Json = {"type": "string", "pattern": "^rev_[0-9a-f]{64}$"}
IF_MATCH: Json = {
    "If-Match": {
        "type": "string",
        "pattern": r'^(\*|"[0-9]{1,18}")$',
        "description": "The ETag of the conversation.",
    }
}
INCLUDE: Json = {
    "include[]": {
        "type": "array",
        "items": {"type": "string", "enum": list(get_args(Include))},
        "description": "Changes nothing: what was asked for when the response was made is in each reading of it.",
    }
}
IDEMPOTENCY_KEY: Json = {
    "Idempotency-Key": {
        "type": "string",
        "pattern": r"^[\x21-\x7e]{1,255}$",
        "description": "One key, one response, conversation or addition to one: the request repeated is answered with the same.",
    }
}
PIN: Json = {"x-everturn-revision": DIGEST | {"description": "The only revision that may answer."}}
ON_UPGRADE: Json = {"x-everturn-on-upgrade": {"type": "string", "enum": list(get_args(Policy))}}
OF_TURNS: Json = (
    IF_MATCH
    | IDEMPOTENCY_KEY
    | ON_UPGRADE
    | PIN
    | {
        "x-everturn-on-disconnect": {
            "type": "string",
            "enum": [choice.value for choice in OnDisconnect],
            "description": "What becomes of the turn when nobody reads it any more.",
        },
        "x-everturn-deadline-s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": LONGEST_DEADLINE_S,
            "description": "Seconds in which it has to be answered; then it fails.",
        },
    }
)
OF_STREAMS: Json = {
    "stream": {"type": "boolean"},
    "starting_after": {
        "type": "integer",
        "minimum": 0,
        "description": "Needs `stream=true`: the number of the last event that you have.",
    },
    "include_obfuscation": {"type": "boolean", "enum": [False]},
}
GONE = 410
MOVED_ON = 412
OTHER_BODY = 422


V1: Mapping[str, Operation] = {
    "POST /v1/conversations": Operation(
        id="createConversation",
        says="Make a conversation, or a fork of one",
        body=ConversationBody,
        body_may_be_absent=True,
        answer=objects.Conversation,
        headers=IDEMPOTENCY_KEY | ON_UPGRADE,
        refuses=(404, GONE, OTHER_BODY),
    ),
    "GET /v1/conversations/{conversation_id}": Operation(
        id="getConversation", says="Read a conversation", answer=objects.Conversation, refuses=(GONE,)
    ),
    "POST /v1/conversations/{conversation_id}": Operation(
        id="updateConversation",
        says="Set a conversation's metadata",
        body=ConversationUpdateBody,
        answer=objects.Conversation,
        headers=IF_MATCH,
        refuses=(GONE, MOVED_ON),
    ),
    "DELETE /v1/conversations/{conversation_id}": Operation(
        id="deleteConversation",
        says="Delete a conversation",
        answer=objects.DeletedConversation,
        headers=IF_MATCH,
        refuses=(GONE, MOVED_ON),
    ),
    "GET /v1/conversations/{conversation_id}/items": Operation(
        id="listConversationItems",
        says="List a conversation's items",
        answer=objects.ItemList,
        query=INCLUDE,
        refuses=(GONE,),
    ),
    "POST /v1/conversations/{conversation_id}/items": Operation(
        id="createConversationItems",
        says="Add items to a conversation",
        body=ItemsBody,
        answer=objects.ItemList,
        query=INCLUDE,
        headers=IF_MATCH | IDEMPOTENCY_KEY,
        refuses=(GONE, MOVED_ON, OTHER_BODY),
    ),
    "GET /v1/conversations/{conversation_id}/items/{item_id}": Operation(
        id="getConversationItem", says="Read an item", answer=objects.Item, query=INCLUDE, refuses=(GONE,)
    ),
    "DELETE /v1/conversations/{conversation_id}/items/{item_id}": Operation(
        id="deleteConversationItem",
        says="Delete an item",
        answer=objects.Conversation,
        headers=IF_MATCH,
        refuses=(GONE, MOVED_ON),
    ),
    "POST /v1/responses": Operation(
        id="createResponse",
        says="Ask for a turn, streamed or waited for",
        body=ResponseBody,
        answer=objects.Response,
        stream=ResponseStreamEvent,
        headers=OF_TURNS,
        refuses=(404, GONE, MOVED_ON, OTHER_BODY),
    ),
    "POST /v1/responses/input_tokens": Operation(
        id="countInputTokens",
        says="Count the tokens of a turn's prompt",
        body=InputTokensBody,
        answer=objects.InputTokens,
        headers=IF_MATCH | ON_UPGRADE | PIN,
        refuses=(404, GONE, MOVED_ON),
    ),
    "GET /v1/responses/{response_id}": Operation(
        id="getResponse",
        says="Read a response, or stream it again",
        answer=objects.Response,
        stream=ResponseStreamEvent,
        query=OF_STREAMS | INCLUDE,
        refuses=(GONE,),
    ),
    "DELETE /v1/responses/{response_id}": Operation(
        id="deleteResponse",
        says="Delete a response",
        answer=objects.DeletedResponse,
        headers=IF_MATCH,
        refuses=(GONE, MOVED_ON),
    ),
    "POST /v1/responses/{response_id}/cancel": Operation(
        id="cancelResponse", says="Cancel a running response", answer=objects.Response, refuses=(GONE,)
    ),
    "GET /v1/responses/{response_id}/input_items": Operation(
        id="listInputItems",
        says="List the items that a request brought",
        answer=objects.ItemList,
        query=INCLUDE,
        refuses=(GONE,),
    ),
    "POST /v1/chat/completions": Operation(
        id="createChatCompletion",
        says="An answer without a conversation; nothing is stored",
        body=ChatBody,
        answer=objects.ChatCompletion,
        stream=objects.ChatCompletionChunk,
        headers=PIN,
        refuses=(404,),
    ),
    "GET /v1/models": Operation(id="listModels", says="List the aliases", answer=objects.ModelList),
    "GET /v1/models/{model}": Operation(id="retrieveModel", says="Read an alias", answer=objects.Model),
}
