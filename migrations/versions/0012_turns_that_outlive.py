"""Turns that outlive the process that runs them: what they have said so far, whose they are, and until when.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from alembic import op

revision = "0012"
down_revision = "0010"
branch_labels = None
depends_on = None

# A turn of the previous version is not finished by a worker: its stream is not known to be one.
TURNS = """
ALTER TABLE turns
    ADD COLUMN background boolean NOT NULL DEFAULT false,
    ADD COLUMN streamed boolean NOT NULL DEFAULT false,
    ADD COLUMN finish boolean NOT NULL DEFAULT false,
    ADD COLUMN claims bigint NOT NULL DEFAULT 0,
    ADD COLUMN deadline_at timestamptz,
    ADD COLUMN queued_at timestamptz,
    ADD COLUMN recovered_at timestamptz;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_turns_queued ON turns (queued_at) WHERE queued_at IS NOT NULL;
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_turns_recovered ON turns (recovered_at) WHERE recovered_at IS NOT NULL;
"""

CHUNKS = """
CREATE TABLE turn_chunks (
    turn_id text NOT NULL,
    tenant_id text NOT NULL,
    number bigint NOT NULL,
    claim bigint NOT NULL,
    attempt bigint NOT NULL,
    revision text NOT NULL,
    pieces text NOT NULL,
    content bytea NOT NULL,
    CONSTRAINT pk_turn_chunks PRIMARY KEY (turn_id, tenant_id, number),
    CONSTRAINT ck_turn_chunks_numbers CHECK (number >= 0 AND claim >= 0 AND attempt > 0),
    CONSTRAINT ck_turn_chunks_revision CHECK (revision ~ '^rev_[0-9a-f]{64}$')
);
ALTER TABLE turn_chunks ENABLE ROW LEVEL SECURITY;
ALTER TABLE turn_chunks FORCE ROW LEVEL SECURITY;
CREATE POLICY of_one_tenant ON turn_chunks TO everturn_service
    USING (tenant_id = nullif(current_setting('app.tenant', true), ''));
CREATE POLICY of_all_tenants ON turn_chunks TO everturn_fleet, everturn_owner USING (true);
"""

PRIVILEGES = "GRANT SELECT, INSERT, DELETE ON turn_chunks TO everturn_service"


def upgrade() -> None:
    for sql in (TURNS, CHUNKS, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
