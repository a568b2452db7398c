"""Indexes for rollouts over events: apart from 0008, since who holds two tables at once meets writers who hold them the other way round."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# What squawk warns of is meant: nothing serves on this schema yet.
EVENTS = """
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_failed_attempts ON events (position) WHERE type = 'attempt.failed';
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_strict ON events (tenant_id, stream)
    WHERE type = 'turn.started' AND payload ->> 'on_upgrade' = 'stay_strict';
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_of_rollouts ON events ((payload ->> 'rollout'), position)
    WHERE type = 'turn.pinned' AND payload ->> 'rollout' IS NOT NULL;
"""


def upgrade() -> None:
    op.execute(EVENTS.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
