"""How long each tenant's conversations are kept after their last turn, and which of them are older than that."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from service.domain.errors import NotFound
from service.domain.events import ConversationId, TenantId
from service.store.constraints import broken_constraint
from service.store.tenant_tables import TENANT_OF_RETENTION, tenant_retention


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    tenant: TenantId
    after_days: int
    set_at: datetime
    set_by: str

    def before(self, now: datetime) -> datetime:
        """Whose last turn is older than this is not kept."""
        return now - timedelta(days=self.after_days)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    conversation: ConversationId
    last_at: datetime


# What only tells about a conversation does not make it younger.
LAST_SAID = """
    SELECT said.occurred_at FROM events AS said
    WHERE said.tenant_id = made.tenant_id AND said.stream = made.stream
        AND said.type NOT IN ('conversation.updated', 'conversation.deleted', 'item.deleted', 'response.deleted')
    ORDER BY said.stream_version DESC LIMIT 1
"""

NOT_ERASED = """
    NOT EXISTS (
        SELECT FROM events AS tombstone
        WHERE tombstone.type = 'conversation.erased'
            AND tombstone.tenant_id = made.tenant_id AND tombstone.stream = made.stream
    )
"""

OVERDUE = text(f"""
    SELECT made.stream, latest.occurred_at AS last_at
    FROM events AS made CROSS JOIN LATERAL ({LAST_SAID}) AS latest
    WHERE made.tenant_id = :tenant AND made.type = 'conversation.created' AND made.stream > :after
        AND made.occurred_at < :before AND latest.occurred_at < :before AND {NOT_ERASED}
    ORDER BY made.stream LIMIT :limit
""")  # noqa: S608 constants

LAST_AT = text(f"""
    SELECT latest.occurred_at
    FROM events AS made CROSS JOIN LATERAL ({LAST_SAID}) AS latest
    WHERE made.tenant_id = :tenant AND made.stream = :stream AND made.stream_version = 1 AND {NOT_ERASED}
""")  # noqa: S608 constants

EARLIER = text("SELECT least(CAST(:now AS timestamptz), clock_timestamp())")


def earlier_of(conn: Connection, now: datetime) -> datetime:
    """That, or the database's time where its clock is behind."""
    earlier: datetime = conn.execute(EARLIER, {"now": now}).scalar_one()
    return earlier


def set_retention(conn: Connection, tenant: TenantId, *, after_days: int, by: str, now: datetime) -> None:
    """In place of what there was. Raises: NotFound: no such tenant."""
    values = {"after_days": after_days, "set_at": now, "set_by": by}
    statement = (
        insert(tenant_retention)
        .values(tenant_id=tenant, **values)
        .on_conflict_do_update(index_elements=[tenant_retention.c.tenant_id], set_=values)
    )
    try:
        conn.execute(statement)
    except IntegrityError as error:
        if broken_constraint(error) == TENANT_OF_RETENTION:
            raise NotFound("tenant", tenant) from error
        raise


def clear_retention(conn: Connection, tenant: TenantId) -> bool:
    """From here on its conversations are kept. False where they were kept before."""
    query = delete(tenant_retention).where(tenant_retention.c.tenant_id == tenant)
    return conn.execute(query).rowcount == 1


def list_retention(conn: Connection, tenant: TenantId | None = None) -> list[Retention]:
    """Of tenants whose conversations are not kept for ever."""
    query = select(tenant_retention).order_by(tenant_retention.c.tenant_id)
    if tenant is not None:
        query = query.where(tenant_retention.c.tenant_id == tenant)
    return [
        Retention(
            tenant=TenantId(row.tenant_id),
            after_days=row.after_days,
            set_at=row.set_at,
            set_by=row.set_by,
        )
        for row in conn.execute(query)
    ]


def overdue(
    conn: Connection, tenant: TenantId, *, before: datetime, after: ConversationId | None, limit: int
) -> list[Overdue]:
    """In the order of their ids, from the one after `after` on: in which nothing was said since `before`."""
    given = {"tenant": tenant, "before": before, "after": after or "", "limit": limit}
    return [
        Overdue(conversation=ConversationId(row.stream), last_at=row.last_at)
        for row in conn.execute(OVERDUE, given)
    ]


def last_at(conn: Connection, tenant: TenantId, conversation: ConversationId) -> datetime | None:
    """When something was last said in it, or answered; None for one that is erased, or was never there."""
    found: datetime | None = conn.execute(
        LAST_AT, {"tenant": tenant, "stream": conversation}
    ).scalar_one_or_none()
    return found
