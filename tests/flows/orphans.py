"""A turn whose owner went silent, and what the sweeper makes of it, in one transaction."""

from datetime import datetime

from sqlalchemy import Connection, text, update

from service import orphan_flow
from service.domain.events import ConversationId, TenantId, TurnId
from service.store.tables import turns
from service.store.turns import OpenTurn


def fail_as_orphan(
    conn: Connection, tenant: TenantId, conversation: ConversationId, turn: TurnId, now: datetime
) -> None:
    ended = text("clock_timestamp() - interval '1 second'")
    conn.execute(update(turns).where(turns.c.turn_id == turn, ~turns.c.closed).values(lease_expires_at=ended))
    orphan = OpenTurn(tenant=tenant, conversation=conversation, turn=turn)
    assert not orphan_flow.settle(conn, orphan, finish=False, now=now)
