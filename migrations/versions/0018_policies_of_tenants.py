"""Tenants whose `on_upgrade` changes, rebuilds that relatives share, and plans told with the rebuild that they wait for.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"
VIEW_FILES = ("tenant_policies_v1", "decisions_v3", "rebuild_cost_v2", "artifacts_v2")

# That column alone: a tenant's name and age stay what they were.
PRIVILEGES = """
GRANT UPDATE (on_upgrade) ON tenants TO everturn_fleet;
GRANT SELECT ON audit.tenant_policies TO everturn_fleet, everturn_auditor;
"""


def upgrade() -> None:
    views = [(VIEWS / f"{name}.sql").read_text() for name in VIEW_FILES]
    for sql in (*views, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
