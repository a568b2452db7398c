"""The tables, as the queries see them. The migrations make them; a test holds the two together."""

from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import UserDefinedType


class Xid8(UserDefinedType[str]):
    """A transaction id that never wraps: what readers of the whole log order by, besides the position."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


METADATA: Final = MetaData()
TIMESTAMP = DateTime(timezone=True)
NOW = text("clock_timestamp()")

REVISION = "~ '^rev_[0-9a-f]{64}$'"
ON_UPGRADE = "in ('replay', 'stay', 'stay_strict')"
ONE_EVENT_PER_VERSION = "uq_events_stream_version"
ONE_CONTENT_PER_VERSION = "pk_event_contents"
ONE_START_PER_TURN = "uq_events_turn_started"
ONE_PIN_PER_ATTEMPT = "uq_events_turn_pinned"
ONE_COMPLETION_PER_TURN = "uq_events_turn_completed"
ONE_ERASURE_PER_STREAM = "uq_events_erased"
ONE_TURN_PER_KEY = "uq_turns_idempotency_key"
ONE_OPEN_TURN = "uq_turns_open"
ONE_ACTIVE_REBUILD = "uq_rebuilds_active"
ONE_SHARED_REBUILD = "uq_rebuilds_shared"
REVISION_OF_ALIAS = "fk_aliases_revision"
REVISION_OF_ENGINE = "fk_engines_revision"

events = Table(
    "events",
    METADATA,
    Column("position", BigInteger, Identity(always=True), primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("stream", Text, nullable=False),
    Column("stream_version", BigInteger, nullable=False),
    Column("type", Text, nullable=False),
    Column("schema_number", BigInteger, nullable=False),
    Column("occurred_at", TIMESTAMP, nullable=False),
    Column("txid", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("payload", JSONB, nullable=False),
    Column("commitment", LargeBinary),
    Column("chain", LargeBinary, nullable=False),
    UniqueConstraint("tenant_id", "stream", "stream_version", name=ONE_EVENT_PER_VERSION),
    CheckConstraint("tenant_id <> '' and stream <> ''", name="ck_events_stream"),
    CheckConstraint("stream_version > 0", name="ck_events_stream_version"),
    CheckConstraint("schema_number > 0", name="ck_events_schema_number"),
    CheckConstraint("type ~ '^[a-z_]+[.][a-z_]+$'", name="ck_events_type"),
    CheckConstraint("jsonb_typeof(payload) = 'object'", name="ck_events_payload"),
    CheckConstraint("octet_length(chain) = 32", name="ck_events_chain"),
    CheckConstraint("octet_length(commitment) = 32", name="ck_events_commitment"),
    CheckConstraint(
        "type not in ('message.accepted', 'function_call.accepted', 'function_call_output.accepted', 'reasoning.accepted', "
        "'turn.asked', 'turn.streamed', 'turn.scored', 'turn.parsed', 'turn.completed', 'attempt.failed') "
        "or commitment is not null",
        name="ck_events_committed",
    ),
    Index(
        ONE_START_PER_TURN,
        text("(payload ->> 'turn')"),
        "tenant_id",
        unique=True,
        postgresql_where=text("type = 'turn.started'"),
    ),
    Index(
        ONE_PIN_PER_ATTEMPT,
        text("(payload ->> 'turn')"),
        text("(payload ->> 'attempt')"),
        "tenant_id",
        unique=True,
        postgresql_where=text("type = 'turn.pinned'"),
    ),
    Index(
        ONE_COMPLETION_PER_TURN,
        text("(payload ->> 'turn')"),
        "tenant_id",
        unique=True,
        postgresql_where=text("type = 'turn.completed'"),
    ),
    Index("ix_events_refused", "position", postgresql_where=text("type = 'kv.refused'")),
    Index(
        "ix_events_conversations",
        "tenant_id",
        "type",
        "stream",
        postgresql_where=text(
            "type in ('conversation.created', 'conversation.deleted', 'conversation.erased')"
        ),
    ),
    Index(
        "ix_events_exceptional",
        text("(payload ->> 'turn')"),
        "type",
        postgresql_where=text("type in ('attempt.failed', 'turn.failed', 'kv.rebuilt')"),
    ),
    Index(
        "ix_events_forks",
        "tenant_id",
        text("(payload ->> 'parent')"),
        postgresql_where=text("type = 'conversation.forked'"),
    ),
    Index(
        "ix_events_lasting",
        "tenant_id",
        "stream",
        "stream_version",
        postgresql_where=text(
            "type in ('conversation.forked', 'conversation.deleted', 'conversation.erased', 'response.deleted', "
            "'kv.refused', 'turn.failed')"
        ),
    ),
    Index(
        "ix_events_items_deleted",
        "tenant_id",
        "stream",
        "stream_version",
        postgresql_where=text("type = 'item.deleted'"),
    ),
    Index("ix_events_occurred_at", "occurred_at", postgresql_using="brin"),
    Index("ix_events_feed", "txid", "position"),
    Index(
        ONE_ERASURE_PER_STREAM,
        "tenant_id",
        "stream",
        unique=True,
        postgresql_where=text("type = 'conversation.erased'"),
    ),
)

event_contents = Table(
    "event_contents",
    METADATA,
    Column("tenant_id", Text, nullable=False),
    Column("stream", Text, nullable=False),
    Column("stream_version", BigInteger, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("content", LargeBinary),
    Column("tokens", LargeBinary),
    # No foreign key: one statement writes both rows, and the commitment says whose content it is.
    PrimaryKeyConstraint("tenant_id", "stream", "stream_version", name=ONE_CONTENT_PER_VERSION),
    CheckConstraint("octet_length(salt) = 16", name="ck_event_contents_salt"),
    CheckConstraint("content is not null or tokens is not null", name="ck_event_contents_parts"),
    CheckConstraint("octet_length(tokens) % 4 = 0", name="ck_event_contents_tokens"),
)

revisions = Table(
    "revisions",
    METADATA,
    Column("revision", Text, primary_key=True),
    # Not jsonb: a descriptor's numbers must keep their text, or its digest would move.
    Column("descriptor", JSON, nullable=False),
    Column("label", Text),
    Column("registered_at", TIMESTAMP, nullable=False, server_default=NOW),
    CheckConstraint(f"revision {REVISION}", name="ck_revisions_revision"),
)

aliases = Table(
    "aliases",
    METADATA,
    Column("alias", Text, primary_key=True),
    Column("revision", Text, ForeignKey("revisions.revision", name=REVISION_OF_ALIAS), nullable=False),
    Column("on_upgrade", Text),
    Column("moved_at", TIMESTAMP, nullable=False, server_default=NOW),
    CheckConstraint("alias <> ''", name="ck_aliases_alias"),
    CheckConstraint(f"on_upgrade {ON_UPGRADE}", name="ck_aliases_on_upgrade"),
)

engines = Table(
    "engines",
    METADATA,
    Column("boot", Text, primary_key=True),
    Column("revision", Text, ForeignKey("revisions.revision", name=REVISION_OF_ENGINE), nullable=False),
    Column("address", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("lease_expires_at", TIMESTAMP, nullable=False),
    Column("registered_at", TIMESTAMP, nullable=False, server_default=NOW),
    Column("registered_by", Text),
    Column("requests", BigInteger),
    CheckConstraint("boot <> ''", name="ck_engines_boot"),
    CheckConstraint("role in ('both', 'prefill', 'decode')", name="ck_engines_role"),
    CheckConstraint("state in ('ready', 'draining', 'gone')", name="ck_engines_state"),
    CheckConstraint("requests >= 0", name="ck_engines_requests"),
)

engine_adapters = Table(
    "engine_adapters",
    METADATA,
    Column("boot", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("revision", Text, ForeignKey("revisions.revision", name="fk_engine_adapters_revision")),
    Column("reason", Text),
    Column("told_at", TIMESTAMP, nullable=False, server_default=NOW),
    CheckConstraint("model <> ''", name="ck_engine_adapters_model"),
    CheckConstraint("(revision is null) = (reason is not null)", name="ck_engine_adapters_known"),
    Index("ix_engine_adapters_revision", "revision"),
)

contracts = Table(
    "contracts",
    METADATA,
    Column("contract_id", Text, primary_key=True),
    Column("reader", Text, ForeignKey("revisions.revision", name="fk_contracts_reader"), nullable=False),
    Column("producer", Text, ForeignKey("revisions.revision", name="fk_contracts_producer"), nullable=False),
    Column("terms", JSON, nullable=False),
    Column("ends_ms", BigInteger, nullable=False),
    Column("revoked_at", TIMESTAMP),
    CheckConstraint("contract_id ~ '^ctr_[0-9a-f]{64}$'", name="ck_contracts_contract_id"),
    CheckConstraint("reader <> producer", name="ck_contracts_parties"),
)

turns = Table(
    "turns",
    METADATA,
    # Leases are renewed by turn alone, so it leads the key.
    Column("turn_id", Text, primary_key=True),
    Column("tenant_id", Text, primary_key=True),
    Column("conversation_id", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("request_hash", Text, nullable=False),
    Column("owner", Text),
    Column("lease_expires_at", TIMESTAMP),
    Column("closed", Boolean, nullable=False, server_default=text("false")),
    Column("opened_at", TIMESTAMP, nullable=False, server_default=NOW),
    Column("background", Boolean, nullable=False, server_default=text("false")),
    Column("streamed", Boolean, nullable=False, server_default=text("false")),
    Column("finish", Boolean, nullable=False, server_default=text("false")),
    Column("claims", BigInteger, nullable=False, server_default=text("0")),
    Column("deadline_at", TIMESTAMP),
    Column("queued_at", TIMESTAMP),
    Column("recovered_at", TIMESTAMP),
    UniqueConstraint("tenant_id", "idempotency_key", name=ONE_TURN_PER_KEY),
    CheckConstraint(
        "closed = (owner is null) and closed = (lease_expires_at is null)", name="ck_turns_lease"
    ),
    Index(ONE_OPEN_TURN, "tenant_id", "conversation_id", unique=True, postgresql_where=text("not closed")),
    # None on the lease: it would make every renewal write to all indexes.
    Index("ix_turns_queued", "queued_at", postgresql_where=text("queued_at is not null")),
    Index("ix_turns_recovered", "recovered_at", postgresql_where=text("recovered_at is not null")),
)

artifacts = Table(
    "artifacts",
    METADATA,
    Column("artifact_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("producer", Text, nullable=False),
    Column("made_by", Text, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("blocks", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("tip", Text, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("recorded_at", TIMESTAMP, nullable=False),
    CheckConstraint("artifact_id ~ '^kv_[0-9a-z]{8,64}$'", name="ck_artifacts_artifact_id"),
    CheckConstraint(f"revision {REVISION}", name="ck_artifacts_revision"),
    CheckConstraint("made_by in ('prefill', 'decode')", name="ck_artifacts_made_by"),
    CheckConstraint("tokens > 0 and blocks > 0 and bytes > 0", name="ck_artifacts_size"),
    Index("ix_artifacts_conversation", "tenant_id", "conversation_id", "recorded_at"),
)

kv_deletions = Table(
    "kv_deletions",
    METADATA,
    Column("artifact_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("asked_at", TIMESTAMP, nullable=False),
    Column("tries", BigInteger, nullable=False, server_default=text("0")),
    Column("tried_at", TIMESTAMP),
    Column("store", Text),
    Column("found", Boolean),
    Column("failure", Text),
    Column("left_names", ARRAY(Text)),
    Column("done_at", TIMESTAMP),
    CheckConstraint("tries >= 0 and (tries = 0) = (tried_at is null)", name="ck_kv_deletions_tries"),
    CheckConstraint("done_at is null or failure is null", name="ck_kv_deletions_done"),
    Index("ix_kv_deletions_waiting", "tries", "asked_at", postgresql_where=text("done_at is null")),
    Index("ix_kv_deletions_conversation", "tenant_id", "conversation_id"),
)

rebuilds = Table(
    "rebuilds",
    METADATA,
    Column("rebuild_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("conversation_id", Text, nullable=False),
    Column("turn_id", Text, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("revision", Text, nullable=False),
    Column("offer", Text),
    Column("queue", Text, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'queued'")),
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("owner", Text),
    Column("lease_expires_at", TIMESTAMP),
    Column("tokens_total", BigInteger, nullable=False),
    Column("tokens_done", BigInteger, nullable=False, server_default=text("0")),
    Column("engine_boot", Text),
    Column("artifact_id", Text),
    Column("reason", Text),
    Column("refusal", JSONB),
    Column("rollout_id", Text),
    Column("created_at", TIMESTAMP, nullable=False, server_default=NOW),
    Column("started_at", TIMESTAMP),
    Column("finished_at", TIMESTAMP),
    Column("partials", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("claims", BigInteger, nullable=False, server_default=text("0")),
    CheckConstraint(f"revision {REVISION}", name="ck_rebuilds_revision"),
    CheckConstraint("queue in ('interactive', 'background')", name="ck_rebuilds_queue"),
    CheckConstraint(
        "state in ('queued', 'running', 'done', 'failed', 'superseded')", name="ck_rebuilds_state"
    ),
    CheckConstraint("attempt > 0 and fence >= 0", name="ck_rebuilds_fence"),
    CheckConstraint("tokens_total >= 0 and tokens_done >= 0", name="ck_rebuilds_tokens"),
    CheckConstraint(
        "state <> 'running' or (fence > 0 and owner is not null and lease_expires_at is not null)",
        name="ck_rebuilds_running",
    ),
    CheckConstraint(
        "state <> 'done' or (artifact_id is not null and engine_boot is not null)", name="ck_rebuilds_done"
    ),
    CheckConstraint("state <> 'failed' or reason is not null", name="ck_rebuilds_failed"),
    CheckConstraint("(state in ('queued', 'running')) = (finished_at is null)", name="ck_rebuilds_finished"),
    CheckConstraint("claims >= 0", name="ck_rebuilds_claims"),
    Index(
        ONE_SHARED_REBUILD,
        "tenant_id",
        "conversation_id",
        "revision",
        unique=True,
        postgresql_where=text("state in ('queued', 'running')"),
    ),
    Index("ix_rebuilds_ended", "finished_at", postgresql_where=text("finished_at is not null")),
    Index("ix_rebuilds_partials", "tenant_id", "conversation_id", postgresql_where=text("partials <> '{}'")),
    Index(
        ONE_ACTIVE_REBUILD,
        "turn_id",
        "attempt",
        "tenant_id",
        unique=True,
        postgresql_where=text("state in ('queued', 'running')"),
    ),
)
