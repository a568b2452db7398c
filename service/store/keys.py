"""Tenants, and the keys that speak for them, for operators and for auditors; of a key's secret only the hash is kept."""

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from sqlalchemy import Connection, Text, bindparam, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError

from service.domain.errors import InvalidInput, NotFound
from service.domain.events import OnUpgrade, TenantId
from service.domain.limits import NO_LIMITS, Limits
from service.store.constraints import broken_constraint
from service.store.hot_statement import HotStatement
from service.store.leases import CLOCK, expired, lease_end
from service.store.tenant_tables import (
    ONE_KEY_PER_HASH,
    TENANT_OF_KEY,
    TENANTS_FORM,
    api_keys,
    tenant_limits,
    tenants,
)
from service.store.tenants import limits_of

# Built once: it is asked with every request.
PRINCIPAL = HotStatement(
    select(
        *(api_keys.c.key_id, api_keys.c.tenant_id, api_keys.c.scope, tenants.c.on_upgrade),
        *(tenant_limits.c[limit.name] for limit in fields(Limits)),
    )
    .select_from(api_keys)
    .outerjoin(tenants, tenants.c.tenant_id == api_keys.c.tenant_id)
    .outerjoin(tenant_limits, tenant_limits.c.tenant_id == api_keys.c.tenant_id)
    .where(
        api_keys.c.secret_sha256 == bindparam("secret_sha256"),
        or_(api_keys.c.revoked_at.is_(None), api_keys.c.revoked_at > CLOCK),
    )
)


class Scope(StrEnum):
    TENANT = "tenant"
    """Conversations of one tenant: /v1."""
    OPERATOR = "operator"
    """The fleet, tenants and keys: /admin; no one's conversations."""
    AUDITOR = "auditor"
    """The audit views, read only: /admin/audit."""
    ENGINE = "engine"
    """The engines that were registered with it, and those that it registers: nothing else of the fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is asking. `on_upgrade` is the tenant's choice, if it made one."""

    tenant: TenantId | None
    scope: Scope
    key_id: str
    on_upgrade: OnUpgrade | None
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    key_id: str
    tenant: TenantId | None
    scope: Scope
    label: str | None
    created_at: datetime
    created_by: str | None
    replaces: str | None
    revoked_at: datetime | None
    """From when on it opens nothing; may lie ahead after a rotation."""
    revoked_by: str | None


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


def create_key(
    conn: Connection,
    *,
    tenant: TenantId | None,
    scope: Scope,
    secret: str,
    now: datetime,
    by: str | None = None,
    label: str | None = None,
    replaces: str | None = None,
) -> str:
    """Returns the key's id.

    Raises:
        InvalidInput: a tenant's key without a tenant, another's with one, or a secret in use.
        NotFound: no such tenant.
    """
    if (scope is Scope.TENANT) != (tenant is not None):
        raise InvalidInput("A key of scope 'tenant' needs a tenant, one of another scope has none.", "tenant")
    row = {
        "key_id": func.concat("key_", func.replace(cast(func.gen_random_uuid(), Text), "-", "")),
        "tenant_id": tenant,
        "scope": scope,
        "secret_sha256": _hash(secret),
        "label": label,
        "created_at": now,
        "created_by": by,
        "replaces": replaces,
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


def rotate_key(conn: Connection, key_id: str, *, secret: str, grace_s: float, now: datetime, by: str) -> str:
    """A new key for the same party, whose id is returned; the old one goes on for the grace time, at most.

    Raises:
        NotFound: no such key.
        InvalidInput: it is revoked already.
    """
    old = _find(conn, key_id)
    revoke_key(conn, key_id, by=by, after_s=grace_s)
    return create_key(
        conn,
        tenant=old.tenant,
        scope=old.scope,
        secret=secret,
        now=now,
        by=by,
        label=old.label,
        replaces=key_id,
    )


def revoke_key(conn: Connection, key_id: str, *, by: str, after_s: float = 0) -> None:
    """By the database's clock; a time that was set before can only come nearer.

    Raises:
        NotFound: no such key.
        InvalidInput: it is revoked already.
    """
    later = or_(api_keys.c.revoked_at.is_(None), api_keys.c.revoked_at > lease_end(after_s))
    alive = or_(api_keys.c.revoked_at.is_(None), ~expired(api_keys.c.revoked_at))
    revoking = (
        update(api_keys)
        .where(api_keys.c.key_id == key_id, alive, later)
        .values(revoked_at=lease_end(after_s), revoked_by=by)
    )
    if conn.execute(revoking).rowcount == 1:
        return
    known = _find(conn, key_id)
    raise InvalidInput(
        f"Key {key_id} is revoked already, as of {known.revoked_at:%Y-%m-%d %H:%M:%S} UTC by {known.revoked_by}.",
        "key_id",
        "key_revoked",
    )


def list_keys(conn: Connection, tenant: TenantId | None = None) -> list[KeyRecord]:
    """Oldest first; of every party, or of one tenant."""
    columns = [c for c in api_keys.c if c.name != "secret_sha256"]
    query = select(*columns).order_by(api_keys.c.created_at, api_keys.c.key_id)
    if tenant is not None:
        query = query.where(api_keys.c.tenant_id == tenant)
    return [
        KeyRecord(
            key_id=row.key_id,
            tenant=None if row.tenant_id is None else TenantId(row.tenant_id),
            scope=Scope(row.scope),
            label=row.label,
            created_at=row.created_at,
            created_by=row.created_by,
            replaces=row.replaces,
            revoked_at=row.revoked_at,
            revoked_by=row.revoked_by,
        )
        for row in conn.execute(query)
    ]


def authenticate(conn: Connection, secret: str) -> Principal | None:
    """None for a secret that opens nothing, or nothing any more."""
    row = PRINCIPAL.one_or_none(conn, {"secret_sha256": _hash(secret)})
    if row is None:
        return None
    return Principal(
        tenant=None if row.tenant_id is None else TenantId(row.tenant_id),
        scope=Scope(row.scope),
        key_id=row.key_id,
        on_upgrade=None if row.on_upgrade is None else OnUpgrade(row.on_upgrade),
        limits=limits_of(row._asdict()),
    )


def is_heir(conn: Connection, key_id: str, of: str) -> bool:
    """Whether the key is `of`, or came in its place by rotations."""
    heirs = select(api_keys.c.key_id, api_keys.c.replaces).where(api_keys.c.key_id == key_id)
    line = heirs.cte("line", recursive=True)
    older = select(api_keys.c.key_id, api_keys.c.replaces).join(line, api_keys.c.key_id == line.c.replaces)
    line = line.union(older)
    return conn.execute(select(line.c.key_id).where(line.c.key_id == of)).one_or_none() is not None


def _find(conn: Connection, key_id: str) -> KeyRecord:
    found = next((key for key in list_keys(conn) if key.key_id == key_id), None)
    if found is None:
        raise NotFound("key", key_id, "key_id")
    return found


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
