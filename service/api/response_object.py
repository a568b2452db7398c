"""OpenAI's objects, built from what is stored: the same for the first answer and for every later reading."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from service.api.output_items import call_object, call_output_object, reasoning_object
from service.conversation_flow import CANCELLED, DISCONNECTED, StoredConversation, StoredTurn
from service.domain.conversation import LENGTH, Item, answer_items
from service.domain.events import (
    KvSource,
    Role,
    TurnAsked,
    TurnCompleted,
    TurnId,
    TurnParsed,
    TurnScored,
)
from service.domain.items import ItemKind
from service.domain.new_items import LABELS
from service.domain.turn import Turn, TurnState

ALWAYS_TOLD = tuple(name for name in LABELS if name != "user")
"""Null where they were not sent; `user` is a string in OpenAI's specification, or not there."""

NOT_ASKED_FOR = {"frequency_penalty": 0, "presence_penalty": 0}
"""What nobody can ask for here, and Open Responses demands of every response."""


def conversation_object(stored: StoredConversation) -> dict[str, Any]:
    fork = stored.state.fork
    return {
        "id": stored.state.id,
        "object": "conversation",
        "created_at": int(stored.created_at.timestamp()),
        "metadata": dict(stored.state.metadata),
        "alias": stored.state.alias,
        "on_upgrade": stored.state.on_upgrade,
        "fork_of": None if fork is None else {"conversation": fork.parent, "after_response": fork.turn},
    }


def list_object(page: Sequence[Item], *, has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [item_object(item) for item in page],
        "has_more": has_more,
        "first_id": page[0].id if page else "",
        "last_id": page[-1].id if page else "",
    }


def item_object(item: Item) -> dict[str, Any]:
    match item.kind:
        case ItemKind.MESSAGE:
            return _message_object(item)
        case ItemKind.FUNCTION_CALL:
            return call_object(item, _item_status(item))
        case ItemKind.FUNCTION_CALL_OUTPUT:
            return call_output_object(item)
        case ItemKind.REASONING:
            return reasoning_object(item, _item_status(item))


def _item_status(item: Item) -> str:
    return "incomplete" if item.cut else "completed"


def _message_object(item: Item) -> dict[str, Any]:
    part = (
        output_text(item.text) if item.role is Role.ASSISTANT else {"type": "input_text", "text": item.text}
    )
    return {
        "id": item.id,
        "type": "message",
        "status": _item_status(item),
        "role": item.role.value,
        "content": [part],
    }


def output_text(text: str, scored: TurnScored | None = None) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs_of(scored)}


def logprobs_of(scored: TurnScored | None) -> list[dict[str, Any]]:
    if scored is None:
        return []
    return [
        _logprob(score.token, score.logprob)
        | {"top_logprobs": [_logprob(other.token, other.logprob) for other in score.top]}
        for score in scored.scores
    ]


def _logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def output_message(item_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": content}


def status_of(turn: Turn) -> str:
    match turn.state:
        case TurnState.COMPLETED if turn.completed is not None and turn.completed.finish_reason == LENGTH:
            return "incomplete"
        case TurnState.COMPLETED:
            return "completed"
        case TurnState.FAILED if is_cancelled(turn):
            return "cancelled"
        case TurnState.FAILED:
            return "failed"
        case TurnState.STARTED | TurnState.PINNED:
            return "queued" if is_queued(turn) else "in_progress"


def in_background(turn: Turn) -> bool:
    return turn.started.terms is not None and turn.started.terms.background


def is_queued(turn: Turn) -> bool:
    """Nobody has begun to answer it, and nobody waits for that."""
    return in_background(turn) and turn.attempt == 0


def is_cancelled(turn: Turn) -> bool:
    return turn.failed is not None and turn.failed.code in (CANCELLED, DISCONNECTED)


def opening_object(stored: StoredTurn) -> dict[str, Any]:
    """The response as it is before anything was done for it, also where it has an answer by now."""
    turn = replace(Turn.of(stored.turn.started), asked=stored.turn.asked)
    return response_object(replace(stored, turn=turn, completed_at=None))


def response_object(stored: StoredTurn) -> dict[str, Any]:
    turn, started, completed = stored.turn, stored.turn.started, stored.turn.completed
    status = status_of(turn)
    ended_at = stored.completed_at
    return {
        "id": turn.id,
        "object": "response",
        "created_at": int(stored.created_at.timestamp()),
        "completed_at": int(ended_at.timestamp()) if ended_at and status == "completed" else None,
        "status": status,
        "background": in_background(turn),
        "error": _error(turn),
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": _instructions(stored),
        "max_output_tokens": started.sampling.max_output_tokens,
        "model": started.alias,
        "output": _output(turn, completed) if completed else [],
        "previous_response_id": stored.previous.turn if stored.previous else None,
        "conversation": {"id": stored.conversation},
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": True,
        "temperature": started.sampling.temperature,
        **_asked(turn.asked),
        "top_logprobs": started.sampling.top_logprobs or 0,
        "top_p": started.sampling.top_p,
        "truncation": "auto" if started.truncate else "disabled",
        **NOT_ASKED_FOR,
        "usage": _usage(completed, turn.parsed) if completed else None,
        "metadata": dict(started.metadata),
        **_provenance(stored),
    }


def _instructions(stored: StoredTurn) -> str | None:
    if stored.instructions is not None:
        return stored.instructions
    asked = stored.turn.asked
    return (asked.instructions or None) if asked else None


def _error(turn: Turn) -> dict[str, str] | None:
    if turn.failed is None or is_cancelled(turn):
        return None
    return {"code": turn.failed.code, "message": turn.failed.message}


def _asked(asked: TurnAsked | None) -> dict[str, Any]:
    """As it was sent, with what was left out."""
    if asked is None:
        asked = TurnAsked(turn=TurnId(""), tools="", tool_choice="", text_format="")
    return {
        "parallel_tool_calls": asked.parallel_tool_calls,
        "text": {"format": json.loads(asked.text_format or '{"type": "text"}')},
        **dict.fromkeys(ALWAYS_TOLD),
        **json.loads(asked.labels or "{}"),
        "tool_choice": json.loads(asked.tool_choice or '"auto"'),
        "tools": json.loads(asked.tools or "[]"),
    }


def _output(turn: Turn, completed: TurnCompleted) -> list[dict[str, Any]]:
    items = answer_items(completed, turn.parsed)
    return [output_object(item, _item_status(item), scored_of(turn)) for item in items]


def output_object(item: Item, status: str, scored: TurnScored | None) -> dict[str, Any]:
    match item.kind:
        case ItemKind.FUNCTION_CALL:
            return call_object(item, status)
        case ItemKind.REASONING:
            return reasoning_object(item, status)
        case _:
            return output_message(item.id, status, [output_text(item.text, scored)])


def scored_of(turn: Turn) -> TurnScored | None:
    """What was scored are the tokens of all that the model wrote: of a message among other items it is not known."""
    return turn.scored if turn.parsed is None else None


def _usage(completed: TurnCompleted, parsed: TurnParsed | None) -> dict[str, Any]:
    return {
        "input_tokens": completed.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": tokens_loaded(completed) + completed.local_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": len(completed.output),
        "output_tokens_details": {"reasoning_tokens": parsed.reasoning_tokens if parsed else 0},
        "total_tokens": completed.prompt_tokens + len(completed.output),
    }


def _provenance(stored: StoredTurn) -> dict[str, Any]:
    """What is ours, beside OpenAI's fields: which revision answered, and what became of the KV."""
    turn = stored.turn
    completed, pinned = turn.completed, turn.pinned
    revision = completed.engine_revision if completed else pinned.revision if pinned else None
    changed = bool(revision and stored.previous and stored.previous.engine_revision != revision)
    refusal = turn.refusals[-1].refusal if turn.refusals else None
    return {
        "revision": revision,
        "revision_changed": changed,
        "attempt": turn.attempt,
        "kv": {
            "source": completed.kv_source if completed else KvSource.NONE,
            "reason": completed.kv_reason if completed else pinned.reason if pinned else None,
            "plan": pinned.plan if pinned else None,
            "contract": completed.loaded.contract if completed and completed.loaded else None,
            "tokens_loaded": tokens_loaded(completed) if completed else 0,
            "tokens_replayed": _replayed(turn, changed=changed),
            "refusal": {"reason": refusal.reason, "differing_fields": list(refusal.differing)}
            if refusal
            else None,
        },
    }


def tokens_loaded(completed: TurnCompleted) -> int:
    return completed.loaded.tokens if completed.loaded else 0


def _replayed(turn: Turn, *, changed: bool) -> int:
    """Tokens of the history that were prefilled again because the revision had changed."""
    if turn.rebuilt is not None:
        return turn.rebuilt.tokens
    completed = turn.completed
    if completed is None or not changed:
        return 0
    said = len(completed.prompt_delta) if completed.extends is not None else 0
    return max(0, completed.prompt_tokens - said - tokens_loaded(completed) - completed.local_tokens)
