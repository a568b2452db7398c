"""Rollouts: where each stands, what it warms, and what finds the events that it is judged by.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

ROLLOUTS = """
CREATE TABLE rollouts (
    rollout_id text CONSTRAINT pk_rollouts PRIMARY KEY,
    alias text NOT NULL,
    source text NOT NULL CONSTRAINT fk_rollouts_source REFERENCES revisions (revision),
    target text NOT NULL CONSTRAINT fk_rollouts_target REFERENCES revisions (revision),
    state text NOT NULL,
    step bigint NOT NULL,
    percent bigint NOT NULL,
    version bigint NOT NULL,
    strategy json NOT NULL,
    reason text NOT NULL,
    waiting text,
    started_at timestamptz NOT NULL,
    since timestamptz NOT NULL,
    counted_from bigint NOT NULL,
    counted_since timestamptz NOT NULL,
    ended_at timestamptz,
    CONSTRAINT ck_rollouts_state CHECK (
        state IN ('planned', 'warming', 'shifting', 'draining', 'done', 'paused', 'aborted', 'rolled_back')
    ),
    CONSTRAINT ck_rollouts_revisions CHECK (source <> target),
    CONSTRAINT ck_rollouts_numbers CHECK (step >= 0 AND percent BETWEEN 0 AND 100 AND version > 0),
    CONSTRAINT ck_rollouts_ended CHECK (
        (state IN ('planned', 'warming', 'shifting', 'draining', 'paused')) = (ended_at IS NULL)
    )
);
CREATE UNIQUE INDEX uq_rollouts_active ON rollouts (alias)
    WHERE state IN ('planned', 'warming', 'shifting', 'draining', 'paused');
"""

WARMUPS = """
CREATE TABLE rollout_warmups (
    rollout_id text NOT NULL,
    place bigint NOT NULL,
    tenant_id text NOT NULL,
    conversation_id text NOT NULL,
    tokens bigint NOT NULL DEFAULT 0,
    rebuild_id text,
    skipped text,
    CONSTRAINT pk_rollout_warmups PRIMARY KEY (rollout_id, place),
    CONSTRAINT ck_rollout_warmups_tokens CHECK (tokens >= 0),
    CONSTRAINT ck_rollout_warmups_outcome CHECK (rebuild_id IS NULL OR skipped IS NULL)
);
ALTER TABLE rollout_warmups ENABLE ROW LEVEL SECURITY;
ALTER TABLE rollout_warmups FORCE ROW LEVEL SECURITY;
CREATE POLICY of_all_tenants ON rollout_warmups TO everturn_fleet, everturn_owner USING (true);
"""

# A job of a rollout belongs to no turn that waits; those of before, and of turns, have none.
JOBS = """
ALTER TABLE rebuilds ADD COLUMN rollout_id text;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_rebuilds_failed ON rebuilds (revision, finished_at) WHERE state = 'failed';
"""

# Every turn asks where its alias is led; rollouts are made and moved by operators and workers alone.
PRIVILEGES = """
GRANT SELECT ON rollouts TO everturn_service;
GRANT INSERT, UPDATE ON rollouts TO everturn_fleet;
GRANT SELECT, INSERT, UPDATE ON rollout_warmups TO everturn_fleet;
GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_fleet, everturn_auditor;
"""

VIEW_FILES = ("rollouts_v1", "rollout_turns_v1", "decisions_v2")


def upgrade() -> None:
    views = [(VIEWS / f"{name}.sql").read_text() for name in VIEW_FILES]
    for sql in (ROLLOUTS, WARMUPS, JOBS, *views, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
