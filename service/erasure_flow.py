"""Erasure: what was said in a conversation goes for good, and the record that it was said stays; one transaction each."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TypeVar

from sqlalchemy import Connection

from service import turn_flow
from service.domain.artifact import ArtifactId
from service.domain.conversation import Conversation
from service.domain.errors import NotFound
from service.domain.events import ConversationErased, ConversationId, KvRebuilt, TenantId, TurnCompleted
from service.store import (
    ancestry,
    artifacts,
    event_store,
    kv_deletions,
    rebuild_progress,
    rebuilds,
    timeline,
    turn_chunks,
    turns,
)

IdT = TypeVar("IdT", bound=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    conversation: ConversationId
    fresh: bool
    """False where it was erased before."""
    contents: int
    """Events that lost their words and token ids, those of its forks included."""
    artifacts: tuple[ArtifactId, ...]
    """All KV that was ever made for it and its forks; whoever has the KV store deletes the files."""
    forks: tuple[ConversationId, ...]
    """Erased with it, since they begin with what was said in it; theirs too."""
    parent: ConversationId | None
    """What it was forked from: what it inherited is said there, and stays."""


def erase_conversation(
    conn: Connection,
    *,
    tenant: TenantId,
    conversation: ConversationId,
    by: str,
    reason: str,
    now: datetime,
) -> Erasure:
    """A turn that is being answered is failed first, so that nothing of it is accepted any more.

    Raises:
        NotFound: no such conversation of this tenant.
    """
    state = event_store.load_conversation(conn, tenant, conversation, for_update=True)
    if not state.exists:
        raise NotFound("conversation", conversation)
    fresh = not timeline.is_erased(conn, tenant, conversation)
    if fresh:
        _end(conn, state, ConversationErased(by=by, reason=reason), now)
    turns.forget_requests(conn, tenant=tenant, conversation=conversation)
    turn_chunks.forget_conversation(conn, tenant=tenant, conversation=conversation)
    made = _artifacts(conn, tenant, conversation)
    kv_deletions.ask(conn, tenant=tenant, conversation=conversation, artifacts=made, now=now)
    emptied = event_store.erase_contents(conn, tenant=tenant, stream=conversation)
    # Whoever forks it waits for the lock on it, and then finds it erased.
    forks = [
        erase_conversation(conn, tenant=tenant, conversation=fork, by=by, reason=_inherited(reason), now=now)
        for fork in ancestry.children(conn, tenant, conversation)
    ]
    return Erasure(
        conversation=conversation,
        fresh=fresh,
        contents=emptied + sum(fork.contents for fork in forks),
        artifacts=_all(made, *(fork.artifacts for fork in forks)),
        forks=_all(*((fork.conversation, *fork.forks) for fork in forks)),
        parent=None if state.fork is None else state.fork.parent,
    )


def _end(conn: Connection, state: Conversation, tombstone: ConversationErased, now: datetime) -> None:
    version = state.version
    if (turn := state.open_turn) is not None:
        turn_flow.fail_turn(
            conn,
            tenant=state.tenant,
            conversation=state.id,
            turn=turn.id,
            code="conversation_erased",
            message="The conversation was erased while this was being answered.",
            now=now,
        )
        version = event_store.load_conversation(conn, state.tenant, state.id).version
    event_store.append(
        conn,
        tenant=state.tenant,
        stream=state.id,
        expected_version=version,
        events=[tombstone],
        now=now,
    )


def _inherited(reason: str) -> str:
    prefix = "with what it was forked from"
    return reason if reason.startswith(prefix) else f"{prefix}: {reason}".removesuffix(": ")


def _all(*groups: Iterable[IdT]) -> tuple[IdT, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(groups)))


def _artifacts(conn: Connection, tenant: TenantId, conversation: ConversationId) -> tuple[ArtifactId, ...]:
    """Rows may have vanished before their files; the events name what was made."""
    named = dict[ArtifactId, None].fromkeys(artifacts.forget_conversation(conn, tenant, conversation))
    named |= dict.fromkeys(rebuild_progress.made_on_the_way(conn, tenant, conversation))
    for event in event_store.read(conn, tenant=tenant, stream=conversation):
        if isinstance(event, KvRebuilt) and not _relatives(conn, conversation, event):
            named[event.artifact] = None
        elif isinstance(event, TurnCompleted) and event.published is not None:
            named[event.published] = None
    return tuple(named)


def _relatives(conn: Connection, conversation: ConversationId, rebuilt: KvRebuilt) -> bool:
    """Made of that one's words, which its turn waited for as well; of a rebuild that nobody knows any more, it is taken for its own."""
    found = rebuilds.find(conn, rebuilt.rebuild)
    return found is not None and found.conversation != conversation
