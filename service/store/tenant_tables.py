"""The tables of tenants: their keys, limits and retention."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
)

from service.store.tables import METADATA, NOW, ON_UPGRADE, TIMESTAMP

TENANT_OF_KEY = "fk_api_keys_tenant_id"
TENANT_OF_LIMITS = "fk_tenant_limits_tenant_id"
TENANT_OF_RETENTION = "fk_tenant_retention_tenant_id"
TENANTS_FORM = "ck_tenants_tenant_id"
ONE_KEY_PER_HASH = "uq_api_keys_secret_sha256"

tenants = Table(
    "tenants",
    METADATA,
    Column("tenant_id", Text, primary_key=True),
    Column("on_upgrade", Text),
    Column("created_at", TIMESTAMP, nullable=False, server_default=NOW),
    # The streams of the fleet belong to no tenant.
    CheckConstraint(
        "tenant_id ~ '^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$' and tenant_id <> 'fleet'", name=TENANTS_FORM
    ),
    CheckConstraint(f"on_upgrade {ON_UPGRADE}", name="ck_tenants_on_upgrade"),
)

api_keys = Table(
    "api_keys",
    METADATA,
    Column("key_id", Text, primary_key=True),
    Column("tenant_id", Text, ForeignKey("tenants.tenant_id", name=TENANT_OF_KEY)),
    Column("scope", Text, nullable=False),
    Column("secret_sha256", LargeBinary, nullable=False),
    Column("created_at", TIMESTAMP, nullable=False),
    Column("label", Text),
    Column("created_by", Text),
    Column("replaces", Text),
    Column("revoked_at", TIMESTAMP),
    Column("revoked_by", Text),
    UniqueConstraint("secret_sha256", name=ONE_KEY_PER_HASH),
    CheckConstraint("scope in ('tenant', 'operator', 'auditor', 'engine')", name="ck_api_keys_scope"),
    CheckConstraint("(revoked_at is null) = (revoked_by is null)", name="ck_api_keys_revoked"),
    CheckConstraint("(scope = 'tenant') = (tenant_id is not null)", name="ck_api_keys_tenant"),
    CheckConstraint("octet_length(secret_sha256) = 32", name="ck_api_keys_secret_sha256"),
)

LEAST_LIMIT = "least(request_bytes, items, conversations, concurrent_turns, tokens)"

tenant_limits = Table(
    "tenant_limits",
    METADATA,
    Column("tenant_id", Text, ForeignKey("tenants.tenant_id", name=TENANT_OF_LIMITS), primary_key=True),
    Column("request_bytes", BigInteger),
    Column("items", BigInteger),
    Column("conversations", BigInteger),
    Column("concurrent_turns", BigInteger),
    Column("tokens", BigInteger),
    Column("set_at", TIMESTAMP, nullable=False),
    Column("set_by", Text, nullable=False),
    CheckConstraint(f"{LEAST_LIMIT} is null or {LEAST_LIMIT} > 0", name="ck_tenant_limits_numbers"),
)

tenant_retention = Table(
    "tenant_retention",
    METADATA,
    Column("tenant_id", Text, ForeignKey("tenants.tenant_id", name=TENANT_OF_RETENTION), primary_key=True),
    Column("after_days", BigInteger, nullable=False),
    Column("set_at", TIMESTAMP, nullable=False),
    Column("set_by", Text, nullable=False),
    CheckConstraint("after_days between 1 and 36500", name="ck_tenant_retention_after_days"),
)
