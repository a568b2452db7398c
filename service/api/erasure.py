"""`DELETE /admin/conversations/{id}/content`: what was said goes for good, and a tombstone says so."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from service.api.wiring import Operator, ServiceOf
from service.domain.events import ConversationId, TenantId
from service.erasure_flow import erase_conversation

router = APIRouter(prefix="/admin")


@router.delete("/conversations/{conversation_id}/content")
async def erase(
    conversation_id: str,
    service: ServiceOf,
    principal: Operator,
    *,
    tenant: str,
    reason: Annotated[str, Query(max_length=200)] = "",
) -> dict[str, Any]:
    """With its forks. A KV collector that forgets what was erased deletes `artifacts`; `audit.kv_deletions` shows what is left."""
    erased = await service.database.run(
        lambda conn: erase_conversation(
            conn,
            tenant=TenantId(tenant),
            conversation=ConversationId(conversation_id),
            by=principal.key_id,
            reason=reason,
            now=service.clock(),
        )
    )
    return {
        "id": erased.conversation,
        "object": "conversation.erased",
        "fresh": erased.fresh,
        "events_emptied": erased.contents,
        "artifacts": list(erased.artifacts),
        "forks": list(erased.forks),
        "inherited_from": erased.parent,
    }
