"""What engines say of their own load, and rebuilds that have ended found by when they did.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Null for an engine whose launcher is of the version before.
ENGINES = """
ALTER TABLE engines ADD COLUMN requests bigint;
-- squawk-ignore constraint-missing-not-valid
ALTER TABLE engines ADD CONSTRAINT ck_engines_requests CHECK (requests >= 0);
"""

ENDED = """
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_rebuilds_ended ON rebuilds (finished_at) WHERE finished_at IS NOT NULL;
"""


def upgrade() -> None:
    for sql in (ENGINES, ENDED):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
