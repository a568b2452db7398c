"""Keys open exactly what they were made for, and the database holds none of them."""

import pytest
from sqlalchemy import Connection, text

from service.domain.errors import InvalidInput, NotFound
from service.domain.events import FLEET, OnUpgrade, TenantId
from service.store import keys
from service.store.keys import Principal, Scope
from tests.store.histories import ACME, NOW

SECRET = "s3cret"


def create(
    conn: Connection,
    secret: str = SECRET,
    *,
    tenant: TenantId | None = ACME,
    scope: Scope = Scope.TENANT,
) -> str:
    return keys.create_key(conn, tenant=tenant, scope=scope, secret=secret, now=NOW)


def test_a_tenants_key_speaks_for_it(conn: Connection) -> None:
    keys.create_tenant(conn, ACME, OnUpgrade.STAY)
    key_id = create(conn)
    assert keys.authenticate(conn, SECRET) == Principal(
        tenant=ACME, scope=Scope.TENANT, key_id=key_id, on_upgrade=OnUpgrade.STAY
    )


def test_an_operators_key_speaks_for_no_tenant(conn: Connection) -> None:
    key_id = create(conn, tenant=None, scope=Scope.OPERATOR)
    assert keys.authenticate(conn, SECRET) == Principal(
        tenant=None, scope=Scope.OPERATOR, key_id=key_id, on_upgrade=None
    )


@pytest.mark.parametrize("secret", ["", "S3CRET", "s3cret ", "s3cret\x00", "\ud800"])
def test_any_other_secret_opens_nothing(conn: Connection, secret: str) -> None:
    keys.create_tenant(conn, ACME)
    create(conn)
    assert keys.authenticate(conn, secret) is None


def test_the_secret_itself_is_nowhere_in_the_row(conn: Connection) -> None:
    keys.create_tenant(conn, ACME)
    create(conn, "a-long-secret")
    [row] = conn.execute(text("SELECT api_keys::text FROM api_keys")).scalars()
    assert "a-long-secret" not in row
    assert b"a-long-secret".hex() not in row


def test_key_ids_differ(conn: Connection) -> None:
    keys.create_tenant(conn, ACME)
    ids = {create(conn, f"secret {number}") for number in range(3)}
    assert len(ids) == 3
    assert all(key_id.startswith("key_") and len(key_id) == 36 for key_id in ids)


def test_a_key_for_an_unknown_tenant_is_refused(conn: Connection) -> None:
    with pytest.raises(NotFound, match="acme"):
        create(conn)


@pytest.mark.parametrize(("tenant", "scope"), [(ACME, Scope.OPERATOR), (None, Scope.TENANT)])
def test_scope_and_tenant_must_fit(conn: Connection, tenant: TenantId | None, scope: Scope) -> None:
    with pytest.raises(InvalidInput, match="scope"):
        create(conn, tenant=tenant, scope=scope)


def test_a_secret_belongs_to_one_key(conn: Connection) -> None:
    keys.create_tenant(conn, ACME)
    create(conn)
    with pytest.raises(InvalidInput, match="in use"):
        create(conn)


def test_creating_a_tenant_again_leaves_it_as_it_is(conn: Connection) -> None:
    keys.create_tenant(conn, ACME, OnUpgrade.STAY)
    keys.create_tenant(conn, ACME)
    create(conn)
    principal = keys.authenticate(conn, SECRET)
    assert principal is not None
    assert principal.on_upgrade is OnUpgrade.STAY


@pytest.mark.parametrize("name", ["", "a b", "../x", "-a", "x" * 129, FLEET])
def test_a_name_that_no_tenant_may_have_is_refused(conn: Connection, name: str) -> None:
    with pytest.raises(InvalidInput, match="tenant's name"):
        keys.create_tenant(conn, TenantId(name))
