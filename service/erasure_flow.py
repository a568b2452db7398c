"""Erasure: what was said in a conversation goes for good, and the record that it was said stays; one transaction each."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service import turn_flow
from service.domain.artifact import ArtifactId
from service.domain.errors import NotFound
from service.domain.events import ConversationErased, ConversationId, KvRebuilt, TenantId, TurnCompleted
from service.store import artifacts, event_store, turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    conversation: ConversationId
    fresh: bool
    """False where it was erased before."""
    contents: int
    """Events that lost their words and token ids."""
    artifacts: tuple[ArtifactId, ...]
    """All KV that was ever made for it; the files are removed where the KV store is."""


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
    fresh = state.erased is None
    if fresh:
        version = state.version
        if (turn := state.open_turn) is not None:
            turn_flow.fail_turn(
                conn,
                tenant=tenant,
                conversation=conversation,
                turn=turn.id,
                code="conversation_erased",
                message="The conversation was erased while this was being answered.",
                now=now,
            )
            version = event_store.load_conversation(conn, tenant, conversation).version
        event_store.append(
            conn,
            tenant=tenant,
            stream=conversation,
            expected_version=version,
            events=[ConversationErased(by=by, reason=reason)],
            now=now,
        )
    turns.forget_requests(conn, tenant=tenant, conversation=conversation)
    return Erasure(
        conversation=conversation,
        fresh=fresh,
        contents=event_store.erase_contents(conn, tenant=tenant, stream=conversation),
        artifacts=_artifacts(conn, tenant, conversation),
    )


def _artifacts(conn: Connection, tenant: TenantId, conversation: ConversationId) -> tuple[ArtifactId, ...]:
    """Rows may have vanished before their files; the events name what was made."""
    named = dict[ArtifactId, None].fromkeys(artifacts.forget_conversation(conn, tenant, conversation))
    for event in event_store.read(conn, tenant=tenant, stream=conversation):
        if isinstance(event, KvRebuilt):
            named[event.artifact] = None
        elif isinstance(event, TurnCompleted) and event.published is not None:
            named[event.published] = None
    return tuple(named)
