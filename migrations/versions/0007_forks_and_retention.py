"""Forks that are found from their parent, ages at which a tenant's conversations are erased, and KV that has to be deleted.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

# What squawk warns of is meant: nothing serves on this schema yet.
FORKS = """
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_forks ON events (tenant_id, (payload ->> 'parent')) WHERE type = 'conversation.forked';
"""

RETENTION = """
CREATE TABLE tenant_retention (
    tenant_id text CONSTRAINT pk_tenant_retention PRIMARY KEY
        CONSTRAINT fk_tenant_retention_tenant_id REFERENCES tenants (tenant_id),
    after_days bigint NOT NULL,
    set_at timestamptz NOT NULL,
    set_by text NOT NULL,
    CONSTRAINT ck_tenant_retention_after_days CHECK (after_days BETWEEN 1 AND 36500)
);
"""

KV_DELETIONS = """
CREATE TABLE kv_deletions (
    artifact_id text CONSTRAINT pk_kv_deletions PRIMARY KEY,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    asked_at timestamptz NOT NULL,
    tries bigint NOT NULL DEFAULT 0,
    tried_at timestamptz,
    store text,
    found boolean,
    failure text,
    left_names text[],
    done_at timestamptz,
    CONSTRAINT ck_kv_deletions_tries CHECK (tries >= 0 AND (tries = 0) = (tried_at IS NULL)),
    CONSTRAINT ck_kv_deletions_done CHECK (done_at IS NULL OR failure IS NULL)
);
CREATE INDEX ix_kv_deletions_waiting ON kv_deletions (tries, asked_at) WHERE done_at IS NULL;
CREATE INDEX ix_kv_deletions_conversation ON kv_deletions (tenant_id, conversation_id);
"""

ROW_SECURITY = """
ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
CREATE POLICY of_one_tenant ON {table} TO everturn_service
    USING (tenant_id = nullif(current_setting('app.tenant', true), ''));
CREATE POLICY of_all_tenants ON {table} TO everturn_fleet, everturn_owner USING (true);
"""

# Erasing is an operator's, and so is how long things are kept. KV may be published by a turn of a tenant after the erasure.
PRIVILEGES = """
GRANT INSERT ON kv_deletions TO everturn_service;
GRANT SELECT, INSERT, UPDATE, DELETE ON tenant_retention TO everturn_fleet;
GRANT SELECT, INSERT, UPDATE ON kv_deletions TO everturn_fleet;
GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_fleet, everturn_auditor;
"""

VIEW_FILES = ("forks_v1", "kv_deletions_v1", "erasures_v2", "tenants_v2")


def upgrade() -> None:
    policies = [ROW_SECURITY.format(table=table) for table in ("tenant_retention", "kv_deletions")]
    views = [(VIEWS / f"{name}.sql").read_text() for name in VIEW_FILES]
    for sql in (FORKS, RETENTION, KV_DELETIONS, *policies, *views, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
