"""The log of events, the rows beside it, the audit views, and who may do what.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

EVENTS = """
CREATE TABLE events (
    position bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT pk_events PRIMARY KEY,
    tenant_id text NOT NULL,
    stream text NOT NULL,
    stream_version bigint NOT NULL,
    type text NOT NULL,
    schema_number bigint NOT NULL,
    occurred_at timestamptz NOT NULL,
    txid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    payload jsonb NOT NULL,
    content bytea,
    tokens bytea,
    CONSTRAINT uq_events_stream_version UNIQUE (tenant_id, stream, stream_version),
    CONSTRAINT ck_events_stream CHECK (tenant_id <> '' AND stream <> ''),
    CONSTRAINT ck_events_stream_version CHECK (stream_version > 0),
    CONSTRAINT ck_events_schema_number CHECK (schema_number > 0),
    CONSTRAINT ck_events_type CHECK (type ~ '^[a-z_]+[.][a-z_]+$'),
    CONSTRAINT ck_events_payload CHECK (jsonb_typeof(payload) = 'object'),
    CONSTRAINT ck_events_tokens CHECK (octet_length(tokens) % 4 = 0),
    CONSTRAINT ck_events_tokens_of_turn CHECK ((type = 'turn.completed') = (tokens IS NOT NULL))
);
CREATE UNIQUE INDEX uq_events_turn_started ON events ((payload ->> 'turn'), tenant_id)
    WHERE type = 'turn.started';
CREATE UNIQUE INDEX uq_events_turn_pinned ON events ((payload ->> 'turn'), (payload ->> 'attempt'), tenant_id)
    WHERE type = 'turn.pinned';
CREATE UNIQUE INDEX uq_events_turn_completed ON events ((payload ->> 'turn'), tenant_id)
    WHERE type = 'turn.completed';
CREATE INDEX ix_events_refused ON events (position) WHERE type = 'kv.refused';
"""

TENANTS = """
CREATE TABLE tenants (
    tenant_id text CONSTRAINT pk_tenants PRIMARY KEY,
    on_upgrade text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ck_tenants_tenant_id
        CHECK (tenant_id ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' AND tenant_id <> 'fleet'),
    CONSTRAINT ck_tenants_on_upgrade CHECK (on_upgrade IN ('replay', 'stay', 'stay_strict'))
);
CREATE TABLE api_keys (
    key_id text CONSTRAINT pk_api_keys PRIMARY KEY,
    tenant_id text CONSTRAINT fk_api_keys_tenant_id REFERENCES tenants (tenant_id),
    scope text NOT NULL,
    secret_sha256 bytea NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT uq_api_keys_secret_sha256 UNIQUE (secret_sha256),
    CONSTRAINT ck_api_keys_scope CHECK (scope IN ('tenant', 'operator')),
    CONSTRAINT ck_api_keys_tenant CHECK ((scope = 'tenant') = (tenant_id IS NOT NULL)),
    CONSTRAINT ck_api_keys_secret_sha256 CHECK (octet_length(secret_sha256) = 32)
);
"""

FLEET = """
CREATE TABLE revisions (
    revision text CONSTRAINT pk_revisions PRIMARY KEY,
    descriptor json NOT NULL,
    label text,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ck_revisions_revision CHECK (revision ~ '^rev_[0-9a-f]{64}$')
);
CREATE TABLE aliases (
    alias text CONSTRAINT pk_aliases PRIMARY KEY,
    revision text NOT NULL CONSTRAINT fk_aliases_revision REFERENCES revisions (revision),
    on_upgrade text,
    moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ck_aliases_alias CHECK (alias <> ''),
    CONSTRAINT ck_aliases_on_upgrade CHECK (on_upgrade IN ('replay', 'stay', 'stay_strict'))
);
CREATE TABLE engines (
    boot text CONSTRAINT pk_engines PRIMARY KEY,
    revision text NOT NULL CONSTRAINT fk_engines_revision REFERENCES revisions (revision),
    address text NOT NULL,
    role text NOT NULL,
    state text NOT NULL,
    lease_expires_at timestamptz NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ck_engines_boot CHECK (boot <> ''),
    CONSTRAINT ck_engines_role CHECK (role IN ('both', 'prefill', 'decode')),
    CONSTRAINT ck_engines_state CHECK (state IN ('ready', 'draining', 'gone'))
);
"""

TURNS = """
CREATE TABLE turns (
    turn_id text,
    tenant_id text,
    conversation_id text NOT NULL,
    idempotency_key text,
    request_hash text NOT NULL,
    owner text,
    lease_expires_at timestamptz,
    closed boolean NOT NULL DEFAULT false,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_turns PRIMARY KEY (turn_id, tenant_id),
    CONSTRAINT uq_turns_idempotency_key UNIQUE (tenant_id, idempotency_key),
    CONSTRAINT ck_turns_lease CHECK (closed = (owner IS NULL) AND closed = (lease_expires_at IS NULL))
);
CREATE UNIQUE INDEX uq_turns_open ON turns (tenant_id, conversation_id) WHERE NOT closed;
"""

KV = """
CREATE TABLE artifacts (
    artifact_id text CONSTRAINT pk_artifacts PRIMARY KEY,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    revision text NOT NULL,
    producer text NOT NULL,
    made_by text NOT NULL,
    tokens bigint NOT NULL,
    blocks bigint NOT NULL,
    bytes bigint NOT NULL,
    tip text NOT NULL,
    expires_ms bigint NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT ck_artifacts_artifact_id CHECK (artifact_id ~ '^kv_[0-9a-z]{8,64}$'),
    CONSTRAINT ck_artifacts_revision CHECK (revision ~ '^rev_[0-9a-f]{64}$'),
    CONSTRAINT ck_artifacts_made_by CHECK (made_by IN ('prefill', 'decode')),
    CONSTRAINT ck_artifacts_size CHECK (tokens > 0 AND blocks > 0 AND bytes > 0)
);
CREATE INDEX ix_artifacts_conversation ON artifacts (tenant_id, conversation_id, recorded_at);
CREATE TABLE rebuilds (
    rebuild_id text CONSTRAINT pk_rebuilds PRIMARY KEY,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    turn_id text NOT NULL,
    attempt bigint NOT NULL,
    revision text NOT NULL,
    offer text,
    queue text NOT NULL,
    state text NOT NULL DEFAULT 'queued',
    fence bigint NOT NULL DEFAULT 0,
    owner text,
    lease_expires_at timestamptz,
    tokens_total bigint NOT NULL,
    tokens_done bigint NOT NULL DEFAULT 0,
    engine_boot text,
    artifact_id text,
    reason text,
    refusal jsonb,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    started_at timestamptz,
    finished_at timestamptz,
    CONSTRAINT ck_rebuilds_revision CHECK (revision ~ '^rev_[0-9a-f]{64}$'),
    CONSTRAINT ck_rebuilds_queue CHECK (queue IN ('interactive', 'background')),
    CONSTRAINT ck_rebuilds_state CHECK (state IN ('queued', 'running', 'done', 'failed', 'superseded')),
    CONSTRAINT ck_rebuilds_fence CHECK (attempt > 0 AND fence >= 0),
    CONSTRAINT ck_rebuilds_tokens CHECK (tokens_total >= 0 AND tokens_done >= 0),
    CONSTRAINT ck_rebuilds_running
        CHECK (state <> 'running' OR (fence > 0 AND owner IS NOT NULL AND lease_expires_at IS NOT NULL)),
    CONSTRAINT ck_rebuilds_done CHECK (state <> 'done' OR (artifact_id IS NOT NULL AND engine_boot IS NOT NULL)),
    CONSTRAINT ck_rebuilds_failed CHECK (state <> 'failed' OR reason IS NOT NULL),
    CONSTRAINT ck_rebuilds_finished CHECK ((state IN ('queued', 'running')) = (finished_at IS NULL))
);
CREATE UNIQUE INDEX uq_rebuilds_active ON rebuilds (turn_id, attempt, tenant_id)
    WHERE state IN ('queued', 'running');
"""

# Privileges stop the service; the triggers also stop whoever has more rights than they should.
# ALWAYS: an ordinary trigger is passed by under session_replication_role = replica.
APPEND_ONLY = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path = '' AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation';
END
$$;
REVOKE ALL ON FUNCTION refuse_change() FROM PUBLIC;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE events ENABLE ALWAYS TRIGGER append_only;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON revisions
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
ALTER TABLE revisions ENABLE ALWAYS TRIGGER append_only;
"""

# Position and transaction id are the database's to give.
PRIVILEGES = """
GRANT USAGE ON SCHEMA public TO everturn_service;
GRANT SELECT ON everturn_schema TO everturn_service;
GRANT SELECT, INSERT ON revisions, tenants, api_keys TO everturn_service;
GRANT SELECT, INSERT (
    tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, content, tokens
) ON events TO everturn_service;
GRANT SELECT, INSERT, UPDATE ON aliases, turns TO everturn_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON engines, artifacts, rebuilds TO everturn_service;
GRANT USAGE ON SCHEMA audit TO everturn_service, everturn_auditor;
GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_service, everturn_auditor;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA audit FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA audit TO everturn_service, everturn_auditor;
"""


def upgrade() -> None:
    views = [
        (VIEWS / f"{name}.sql").read_text()
        for name in (
            "turn_provenance_v1",
            "cross_revision_hits_v1",
            "refusals_v1",
            "token_ids_v1",
            "turn_tokens_v1",
            "prompt_of_v1",
        )
    ]
    for sql in (EVENTS, TENANTS, FLEET, TURNS, KV, APPEND_ONLY, "CREATE SCHEMA audit", *views, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
