"""Every event with content has a commitment to it, tools and streams as well; cross-revision hits have a place in the order.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

# The previous version commits to all of these already. Rows that are there are looked at in 0016, which holds nobody up.
COMMITTED = """
-- squawk-ignore ban-drop-constraint
ALTER TABLE events DROP CONSTRAINT ck_events_committed;
ALTER TABLE events ADD CONSTRAINT ck_events_committed CHECK (type NOT IN (
    'message.accepted', 'function_call.accepted', 'function_call_output.accepted', 'reasoning.accepted', 'turn.asked',
    'turn.streamed', 'turn.scored', 'turn.parsed', 'turn.completed', 'attempt.failed'
) OR commitment IS NOT NULL) NOT VALID;
"""


VIEW_FILES = ("cross_revision_hits_v3",)


def upgrade() -> None:
    views = [(VIEWS / f"{name}.sql").read_text() for name in VIEW_FILES]
    for sql in (*views, COMMITTED):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
