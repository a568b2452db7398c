"""Tenants and the keys that speak for them; of a key's secret only the hash is kept."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from sqlalchemy import Connection, Text, cast, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from service.domain.errors import InvalidInput, NotFound
from service.domain.events import OnUpgrade, TenantId
from service.store.constraints import broken_constraint
from service.store.tables import ONE_KEY_PER_HASH, TENANT_OF_KEY, TENANTS_FORM, api_keys, tenants


class Scope(StrEnum):
    TENANT = "tenant"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is asking. `on_upgrade` is the tenant's choice, if it made one."""

    tenant: TenantId | None
    scope: Scope
    key_id: str
    on_upgrade: OnUpgrade | None


def create_tenant(conn: Connection, tenant: TenantId, on_upgrade: OnUpgrade | None = None) -> None:
    """One that exists stays as it is.

    Raises:
        InvalidInput: not a name that a tenant may have.
    """
    statement = insert(tenants).values(tenant_id=tenant, on_upgrade=on_upgrade).on_conflict_do_nothing()
    try:
        conn.execute(statement)
    except IntegrityError as error:
        if broken_constraint(error) == TENANTS_FORM:
            raise InvalidInput(
                "A tenant's name is 1 to 128 letters, digits, '.', '_' or '-', begins with a letter or digit, "
                "and is not 'fleet'.",
                "tenant",
            ) from error
        raise


def create_key(conn: Connection, *, tenant: TenantId | None, scope: Scope, secret: str, now: datetime) -> str:
    """Returns the key's id.

    Raises:
        InvalidInput: a tenant's key without a tenant, an operator's with one, or a secret in use.
        NotFound: no such tenant.
    """
    if (scope is Scope.TENANT) != (tenant is not None):
        raise InvalidInput(
            "A key of scope 'tenant' needs a tenant, one of scope 'operator' has none.", "tenant"
        )
    row = {
        "key_id": func.concat("key_", func.replace(cast(func.gen_random_uuid(), Text), "-", "")),
        "tenant_id": tenant,
        "scope": scope,
        "secret_sha256": _hash(secret),
        "created_at": now,
    }
    try:
        key_id: str = conn.execute(insert(api_keys).values(row).returning(api_keys.c.key_id)).scalar_one()
    except IntegrityError as error:
        match broken_constraint(error):
            case str(name) if name == TENANT_OF_KEY:
                raise NotFound("tenant", str(tenant), "tenant") from error
            case str(name) if name == ONE_KEY_PER_HASH:
                raise InvalidInput(
                    "The secret is in use by another key; make a new one.", "secret"
                ) from error
        raise
    return key_id


def authenticate(conn: Connection, secret: str) -> Principal | None:
    query = (
        select(api_keys.c.key_id, api_keys.c.tenant_id, api_keys.c.scope, tenants.c.on_upgrade)
        .join_from(api_keys, tenants, tenants.c.tenant_id == api_keys.c.tenant_id, isouter=True)
        .where(api_keys.c.secret_sha256 == _hash(secret))
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    return Principal(
        tenant=None if row.tenant_id is None else TenantId(row.tenant_id),
        scope=Scope(row.scope),
        key_id=row.key_id,
        on_upgrade=None if row.on_upgrade is None else OnUpgrade(row.on_upgrade),
    )


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
