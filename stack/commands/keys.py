"""`everturn keys ls | create | rotate | revoke` and `everturn tenants ls | limit | policy`: who may speak for whom, and how much."""

import argparse
import secrets
from dataclasses import fields
from datetime import UTC, datetime

from service import tenant_flow
from service.domain.events import OnUpgrade, TenantId
from service.domain.limits import Limits
from service.store import keys, tenants
from service.store.keys import KeyRecord, Scope
from stack import database
from stack.caller import caller
from stack.commands.parsers import Commands

SECRET_BYTES = 32
DEFAULT = "default"


def add(commands: Commands) -> None:
    parser = commands.add_parser("keys", help="list, make, rotate and revoke API keys")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    ls = actions.add_parser("ls", help="all keys, without their secrets")
    ls.add_argument("--tenant", help="only this one's")
    create = actions.add_parser("create", help="make one; its secret is printed once")
    create.add_argument("scope", choices=[scope.value for scope in Scope])
    create.add_argument("--tenant", help="whom a tenant's key speaks for; made if it does not exist")
    create.add_argument("--label", help="what it is for")
    rotate = actions.add_parser("rotate", help="make one in place of another")
    rotate.add_argument("key_id")
    rotate.add_argument(
        "--grace", type=float, default=0, metavar="SECONDS", help="the old one goes on for (default: 0)"
    )
    revoke = actions.add_parser("revoke", help="from now on it opens nothing")
    revoke.add_argument("key_id")
    owners = commands.add_parser("tenants", help="tenants and their limits")
    kinds = owners.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = kinds.add_parser("ls", help="all tenants, with their limits")
    limit = kinds.add_parser("limit", help="set the limits of one; what is left out is without a limit")
    limit.add_argument("tenant")
    for field in fields(Limits):
        limit.add_argument(f"--{field.name.replace('_', '-')}", type=_positive, metavar="MOST")
    policy = kinds.add_parser("policy", help="set how its conversations meet an upgrade")
    policy.add_argument("tenant")
    policy.add_argument(
        "on_upgrade",
        choices=[*(one.value for one in OnUpgrade), DEFAULT],
        help=f"where turn, conversation and alias say nothing; {DEFAULT}: nor does the tenant",
    )
    for one, run in (
        (ls, _ls),
        (create, _create),
        (rotate, _rotate),
        (revoke, _revoke),
        (listed, _tenants),
        (limit, _limit),
        (policy, _policy),
    ):
        database.add_argument(one)
        one.set_defaults(run=run)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above 0")
    return int(text)


def _ls(given: argparse.Namespace) -> int:
    with database.connected(given) as conn:
        found = keys.list_keys(conn, given.tenant and TenantId(given.tenant))
    for key in found:
        print(_line(key))
    return 0


def _create(given: argparse.Namespace) -> int:
    secret = _new_secret()
    tenant = given.tenant and TenantId(given.tenant)
    with database.connected(given) as conn:
        if tenant and given.scope == Scope.TENANT:
            keys.create_tenant(conn, tenant)
        key_id = keys.create_key(
            conn,
            tenant=tenant or None,
            scope=Scope(given.scope),
            secret=secret,
            now=datetime.now(UTC),
            by=caller(),
            label=given.label,
        )
    print(f"{key_id}\n{secret}")
    return 0


def _rotate(given: argparse.Namespace) -> int:
    secret = _new_secret()
    with database.connected(given) as conn:
        key_id = keys.rotate_key(
            conn, given.key_id, secret=secret, grace_s=given.grace, now=datetime.now(UTC), by=caller()
        )
    print(f"{key_id}\n{secret}")
    return 0


def _revoke(given: argparse.Namespace) -> int:
    with database.connected(given) as conn:
        keys.revoke_key(conn, given.key_id, by=caller())
    print(f"{given.key_id} is revoked")
    return 0


def _tenants(given: argparse.Namespace) -> int:
    with database.connected(given) as conn:
        found = tenants.list_tenants(conn)
    for one in found:
        limits = {f.name: getattr(one.limits, f.name) for f in fields(Limits)}
        told = " ".join(f"{name}={most}" for name, most in limits.items() if most is not None)
        print(f"{one.tenant}  on_upgrade={one.on_upgrade or 'replay'}  {told or 'no limits of its own'}")
    return 0


def _limit(given: argparse.Namespace) -> int:
    limits = Limits(**{field.name: getattr(given, field.name) for field in fields(Limits)})
    with database.connected(given) as conn:
        tenants.set_limits(conn, TenantId(given.tenant), limits, by=caller(), now=datetime.now(UTC))
    print(f"limits of {given.tenant} are set; they hold from its next request on")
    return 0


def _policy(given: argparse.Namespace) -> int:
    wanted = None if given.on_upgrade == DEFAULT else OnUpgrade(given.on_upgrade)
    with database.connected(given) as conn:
        tenant_flow.set_policy(conn, TenantId(given.tenant), wanted, by=caller(), now=datetime.now(UTC))
    print(f"on_upgrade of {given.tenant} is {wanted or 'replay, by default'}; it holds from its next turn on")
    return 0


def _line(key: KeyRecord) -> str:
    state = f"revoked {key.revoked_at:%Y-%m-%d %H:%M} by {key.revoked_by}" if key.revoked_at else "in force"
    return f"{key.key_id}  {key.scope}  {key.tenant or '-'}  {key.label or '-'}  {key.created_at:%Y-%m-%d}  {state}"


def _new_secret() -> str:
    return "sk-everturn-" + secrets.token_urlsafe(SECRET_BYTES)
