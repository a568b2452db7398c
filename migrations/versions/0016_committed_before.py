"""The commitments of the events that were there before 0015: a look at each row, beside which everybody reads and writes.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# Longer than a migration may usually take: a long record is read, and nobody waits for it.
VALIDATE = """
SET LOCAL statement_timeout = '1h';
ALTER TABLE events VALIDATE CONSTRAINT ck_events_committed;
"""


def upgrade() -> None:
    op.execute(VALIDATE.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
