"""Compatibility contracts, and the views that tell their uses from violations.

This must not break the previous version, which serves while this runs and may be rolled back to:
add what the next version needs in one release, and take away what none needs any more in a later one.
Views are new files in migrations/views; a released file is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

VIEWS = Path(__file__).parents[1] / "views"

CONTRACTS = """
CREATE TABLE contracts (
    contract_id text CONSTRAINT pk_contracts PRIMARY KEY,
    reader text NOT NULL CONSTRAINT fk_contracts_reader REFERENCES revisions (revision),
    producer text NOT NULL CONSTRAINT fk_contracts_producer REFERENCES revisions (revision),
    terms json NOT NULL,
    ends_ms bigint NOT NULL,
    revoked_at timestamptz,
    CONSTRAINT ck_contracts_contract_id CHECK (contract_id ~ '^ctr_[0-9a-f]{64}$'),
    CONSTRAINT ck_contracts_parties CHECK (reader <> producer)
);
"""

# Its terms are for ever; it can only be revoked, and never in the name of one tenant.
PRIVILEGES = """
GRANT SELECT ON contracts TO everturn_service;
GRANT INSERT, UPDATE (revoked_at) ON contracts TO everturn_fleet;
GRANT SELECT ON ALL TABLES IN SCHEMA audit TO everturn_fleet, everturn_auditor;
"""


def upgrade() -> None:
    views = [(VIEWS / f"{name}.sql").read_text() for name in ("contracts_used_v1", "turn_provenance_v2")]
    for sql in (CONTRACTS, *views, PRIVILEGES):
        op.execute(sql.strip().removesuffix(";"))


def downgrade() -> None:
    raise NotImplementedError(
        "The log is append-only: go back by running the previous version on this schema."
    )
