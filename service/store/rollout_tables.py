"""The tables of rollouts, beside those in tables.py, and what finds their events."""

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)

from service.store.tables import METADATA, TIMESTAMP, events, rebuilds

ONE_ACTIVE_ROLLOUT = "uq_rollouts_active"
REVISION_OF_ROLLOUT = "fk_rollouts_target"
ACTIVE_STATES = ("planned", "warming", "shifting", "draining", "paused")
STATES = "in ('planned', 'warming', 'shifting', 'draining', 'done', 'paused', 'aborted', 'rolled_back')"
ACTIVE = "in ('planned', 'warming', 'shifting', 'draining', 'paused')"

rollouts = Table(
    "rollouts",
    METADATA,
    Column("rollout_id", Text, primary_key=True),
    Column("alias", Text, nullable=False),
    Column("source", Text, ForeignKey("revisions.revision", name="fk_rollouts_source"), nullable=False),
    Column("target", Text, ForeignKey("revisions.revision", name=REVISION_OF_ROLLOUT), nullable=False),
    Column("state", Text, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("percent", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("strategy", JSON, nullable=False),
    Column("reason", Text, nullable=False),
    Column("waiting", Text),
    Column("started_at", TIMESTAMP, nullable=False),
    Column("since", TIMESTAMP, nullable=False),
    Column("counted_from", BigInteger, nullable=False),
    Column("counted_since", TIMESTAMP, nullable=False),
    Column("ended_at", TIMESTAMP),
    CheckConstraint(f"state {STATES}", name="ck_rollouts_state"),
    CheckConstraint("source <> target", name="ck_rollouts_revisions"),
    CheckConstraint("step >= 0 and percent between 0 and 100 and version > 0", name="ck_rollouts_numbers"),
    CheckConstraint(f"(state {ACTIVE}) = (ended_at is null)", name="ck_rollouts_ended"),
    Index(ONE_ACTIVE_ROLLOUT, "alias", unique=True, postgresql_where=text(f"state {ACTIVE}")),
)

rollout_warmups = Table(
    "rollout_warmups",
    METADATA,
    Column("rollout_id", Text, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("tenant_id", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("tokens", BigInteger, nullable=False, server_default=text("0")),
    Column("rebuild_id", Text),
    Column("skipped", Text),
    PrimaryKeyConstraint("rollout_id", "place", name="pk_rollout_warmups"),
    CheckConstraint("tokens >= 0", name="ck_rollout_warmups_tokens"),
    CheckConstraint("rebuild_id is null or skipped is null", name="ck_rollout_warmups_outcome"),
)

Index(
    "ix_events_failed_attempts",
    events.c.position,
    postgresql_where=text("type = 'attempt.failed'"),
)
Index(
    "ix_events_strict",
    events.c.tenant_id,
    events.c.stream,
    postgresql_where=text("type = 'turn.started' and payload ->> 'on_upgrade' = 'stay_strict'"),
)
Index(
    "ix_events_of_rollouts",
    text("(payload ->> 'rollout')"),
    events.c.position,
    postgresql_where=text("type = 'turn.pinned' and payload ->> 'rollout' is not null"),
)
Index(
    "ix_rebuilds_failed",
    rebuilds.c.revision,
    rebuilds.c.finished_at,
    postgresql_where=text("state = 'failed'"),
)
