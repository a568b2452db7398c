"""What of a conversation lasts is found without its turns, and who took part in its turns without sorting all of them.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

# What squawk warns of is meant: nothing serves on this schema yet.
INDEXES = """
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_lasting ON events (tenant_id, stream, stream_version) WHERE type IN (
    'conversation.forked', 'conversation.deleted', 'conversation.erased', 'response.deleted', 'kv.refused', 'turn.failed'
);
"""


def upgrade() -> None:
    for sql in (INDEXES, (VIEWS / "turn_provenance_v4.sql").read_text()):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
