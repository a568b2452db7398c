"""What a fork deleted is found without its turns, and contracts are looked up only for turns that could have one.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
"""

from pathlib import Path

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

# What squawk warns of is meant: nothing serves on this schema yet.
INDEX = """
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ix_events_items_deleted ON events (tenant_id, stream, stream_version) WHERE type = 'item.deleted'
"""


def upgrade() -> None:
    for sql in (INDEX, (VIEWS / "turn_provenance_v5.sql").read_text()):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
