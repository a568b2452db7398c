"""Rebuilds that are gone on with from where they were left, and that whoever wants the same one shares.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

PROGRESS = """
ALTER TABLE rebuilds
    ADD COLUMN partials text[] NOT NULL DEFAULT '{}',
    ADD COLUMN claims bigint NOT NULL DEFAULT 0;
-- squawk-ignore constraint-missing-not-valid
ALTER TABLE rebuilds ADD CONSTRAINT ck_rebuilds_claims CHECK (claims >= 0);
"""

# The table is held since it was altered, so nobody can queue a second one in between.
ONE_EACH = """
UPDATE rebuilds SET state = 'superseded', finished_at = clock_timestamp(), reason = 'another rebuilds it'
WHERE state IN ('queued', 'running') AND EXISTS (
    SELECT FROM rebuilds AS other
    WHERE other.tenant_id = rebuilds.tenant_id AND other.conversation_id = rebuilds.conversation_id
        AND other.revision = rebuilds.revision AND other.state IN ('queued', 'running')
        AND (other.rollout_id IS NULL, other.created_at, other.rebuild_id)
            > (rebuilds.rollout_id IS NULL, rebuilds.created_at, rebuilds.rebuild_id)
);
-- squawk-ignore require-concurrent-index-creation
CREATE UNIQUE INDEX uq_rebuilds_shared ON rebuilds (tenant_id, conversation_id, revision)
    WHERE state IN ('queued', 'running');
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_rebuilds_partials ON rebuilds (tenant_id, conversation_id) WHERE partials <> '{}';
"""

PRIVILEGES = "GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_fleet, everturn_auditor"

VIEW_FILES = ("rebuild_jobs_v2",)


def upgrade() -> None:
    views = [(VIEWS / f"{name}.sql").read_text() for name in VIEW_FILES]
    for sql in (PROGRESS, ONE_EACH, *views, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
