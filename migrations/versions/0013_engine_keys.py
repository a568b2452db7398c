"""Keys for engines alone, which key an engine was registered with, and prefills in the load of the engines that do them.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

# Wider than it was: no row that is there can break it.
KEYS = """
-- squawk-ignore ban-drop-constraint
ALTER TABLE api_keys DROP CONSTRAINT ck_api_keys_scope;
-- squawk-ignore constraint-missing-not-valid
ALTER TABLE api_keys ADD CONSTRAINT ck_api_keys_scope CHECK (scope IN ('tenant', 'operator', 'auditor', 'engine'));
"""

# Null for those that the previous version registers.
ENGINES = "ALTER TABLE engines ADD COLUMN registered_by text;"


def upgrade() -> None:
    load = (VIEWS / "engine_load_v2.sql").read_text()
    for sql in (KEYS, ENGINES, load):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
