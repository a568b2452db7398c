"""Keys that end, limits of tenants, rows that a tenant's transaction cannot see, and what an auditor asks for.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

KEYS = """
ALTER TABLE api_keys
    ADD COLUMN label text,
    ADD COLUMN created_by text,
    ADD COLUMN replaces text,
    ADD COLUMN revoked_at timestamptz,
    ADD COLUMN revoked_by text;
-- squawk-ignore ban-drop-constraint
ALTER TABLE api_keys DROP CONSTRAINT ck_api_keys_scope;
-- squawk-ignore constraint-missing-not-valid
ALTER TABLE api_keys ADD CONSTRAINT ck_api_keys_scope CHECK (scope IN ('tenant', 'operator', 'auditor'));
-- squawk-ignore constraint-missing-not-valid
ALTER TABLE api_keys ADD CONSTRAINT ck_api_keys_revoked CHECK ((revoked_at IS NULL) = (revoked_by IS NULL));
"""

LIMITS = """
CREATE TABLE tenant_limits (
    tenant_id text CONSTRAINT pk_tenant_limits PRIMARY KEY
        CONSTRAINT fk_tenant_limits_tenant_id REFERENCES tenants (tenant_id),
    request_bytes bigint,
    items bigint,
    conversations bigint,
    concurrent_turns bigint,
    tokens bigint,
    set_at timestamptz NOT NULL,
    set_by text NOT NULL,
    CONSTRAINT ck_tenant_limits_numbers CHECK (
        least(request_bytes, items, conversations, concurrent_turns, tokens) IS NULL
        OR least(request_bytes, items, conversations, concurrent_turns, tokens) > 0
    )
);
"""

# What squawk warns of is meant: nothing serves on this schema yet.
INDEXES = """
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_conversations ON events (tenant_id, type, stream)
    WHERE type IN ('conversation.created', 'conversation.deleted', 'conversation.erased');
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_exceptional ON events ((payload ->> 'turn'), type)
    WHERE type IN ('attempt.failed', 'turn.failed', 'kv.rebuilt');
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_occurred_at ON events USING brin (occurred_at);
"""

TENANTS_ROWS = (
    "events",
    "event_contents",
    "turns",
    "artifacts",
    "rebuilds",
    "tenants",
    "tenant_limits",
    "api_keys",
)

# FORCE: without it the tables' owner, which the views read as, would pass by every policy unnamed.
ROW_SECURITY = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
CREATE POLICY of_one_tenant ON {table} TO everturn_service
    USING (tenant_id = nullif(current_setting('app.tenant', true), ''));
CREATE POLICY of_all_tenants ON {table} TO everturn_fleet, everturn_owner USING (true);
"""

PRIVILEGES = """
REVOKE ALL ON api_keys FROM everturn_service;
REVOKE INSERT ON tenants FROM everturn_service;
REVOKE SELECT ON ALL TABLES IN SCHEMA audit FROM everturn_service;
GRANT SELECT, INSERT, UPDATE (revoked_at, revoked_by) ON api_keys TO everturn_fleet;
GRANT INSERT ON tenants TO everturn_fleet;
GRANT SELECT ON tenant_limits, engine_load TO everturn_service;
GRANT INSERT, UPDATE ON tenant_limits TO everturn_fleet;
GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_fleet, everturn_auditor;
"""


def upgrade() -> None:
    views = [
        (VIEWS / f"{name}_v1.sql").read_text()
        for name in (
            "engine_load",
            "alias_history",
            "engines",
            "revisions",
            "turns",
            "attempts",
            "decisions",
            "rebuild_cost",
            "rebuild_jobs",
            "artifacts",
            "erasures",
            "tenant_storage",
            "keys",
            "tenants",
        )
    ]
    policies = [ROW_SECURITY.format(table=table) for table in TENANTS_ROWS]
    views.append((VIEWS / "cross_revision_hits_v2.sql").read_text())
    for sql in (KEYS, LIMITS, INDEXES, *views, *policies, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
