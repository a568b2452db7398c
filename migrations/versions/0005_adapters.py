"""Adapters that engines serve, and an audit that knows their revisions.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

# Beside `engines`, which the previous version reads and writes: to it, an engine goes on being its base alone. Rows of a boot that has none there
# mean nothing; a reference would forbid what operators may do to disposable rows, TRUNCATE engines.
ADAPTERS = """
CREATE TABLE engine_adapters (
    boot text NOT NULL,
    model text NOT NULL,
    revision text CONSTRAINT fk_engine_adapters_revision REFERENCES revisions (revision),
    reason text,
    told_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_engine_adapters PRIMARY KEY (boot, model),
    CONSTRAINT ck_engine_adapters_model CHECK (model <> ''),
    CONSTRAINT ck_engine_adapters_known CHECK ((revision IS NULL) = (reason IS NOT NULL))
);
CREATE INDEX ix_engine_adapters_revision ON engine_adapters (revision);
"""

# A turn of any tenant may go to an adapter; what an engine serves is told by operators alone.
PRIVILEGES = """
GRANT SELECT ON engine_adapters TO everturn_service;
GRANT INSERT, UPDATE, DELETE ON engine_adapters TO everturn_fleet;
GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_fleet, everturn_auditor;
"""


def upgrade() -> None:
    views = [(VIEWS / f"{name}.sql").read_text() for name in ("engine_adapters_v1", "turn_provenance_v3")]
    for sql in (ADAPTERS, *views, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
