"""`everturn keys` and `everturn tenants` on a real database."""

import pytest
from sqlalchemy import Engine

from service.domain.events import TenantId
from service.domain.limits import Limits
from service.store import audit, keys, tenants
from stack.cli import main


@pytest.fixture
def run(database: str, capsys: pytest.CaptureFixture[str]) -> "Run":
    return Run(database, capsys)


class Run:
    def __init__(self, database: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._database = database
        self._capsys = capsys

    def __call__(self, *arguments: str, status: int = 0) -> list[str]:
        assert main([*arguments, "--database-url", self._database]) == status
        printed = self._capsys.readouterr()
        return (printed.out if status == 0 else printed.err).splitlines()


def opens(engine: Engine, secret: str) -> bool:
    with engine.begin() as conn:
        return keys.authenticate(conn, secret) is not None


def test_a_key_is_made_with_its_tenant_listed_without_its_secret_and_revoked(
    run: Run, engine: Engine
) -> None:
    key_id, secret = run("keys", "create", "tenant", "--tenant", "acme", "--label", "laptop")
    assert opens(engine, secret)
    [line] = run("keys", "ls", "--tenant", "acme")
    assert line.startswith(f"{key_id}  tenant  acme  laptop")
    assert line.endswith("in force")
    assert secret not in line
    run("keys", "revoke", key_id)
    assert not opens(engine, secret)
    assert "revoked" in run("keys", "ls")[0]


def test_a_rotated_key_is_replaced(run: Run, engine: Engine) -> None:
    key_id, old = run("keys", "create", "auditor")
    fresh_id, fresh = run("keys", "rotate", key_id)
    assert (opens(engine, old), opens(engine, fresh)) == (False, True)
    assert fresh_id != key_id


def test_a_mistake_is_one_line_that_says_what_to_do(run: Run) -> None:
    assert run("keys", "create", "operator", "--tenant", "acme", status=1) == [
        "everturn: A key of scope 'tenant' needs a tenant, one of another scope has none."
    ]
    assert run("keys", "revoke", "key_x", status=1) == [
        "everturn: No key with id 'key_x'. `everturn keys ls` lists them."
    ]
    assert run("tenants", "limit", "nobody", "--items", "3", status=1) == [
        "everturn: No tenant with id 'nobody'. `everturn tenants ls` lists them."
    ]


def test_a_tenants_policy_is_changed_listed_and_on_record(run: Run, engine: Engine) -> None:
    run("keys", "create", "tenant", "--tenant", "acme")
    assert run("tenants", "policy", "acme", "stay") == [
        "on_upgrade of acme is stay; it holds from its next turn on"
    ]
    assert run("tenants", "ls") == ["acme  on_upgrade=stay  no limits of its own"]
    assert run("tenants", "policy", "acme", "default") == [
        "on_upgrade of acme is replay, by default; it holds from its next turn on"
    ]
    assert run("tenants", "ls") == ["acme  on_upgrade=replay  no limits of its own"]
    assert run("tenants", "policy", "nobody", "stay", status=1) == [
        "everturn: No tenant with id 'nobody'. `everturn tenants ls` lists them."
    ]
    with engine.begin() as conn:
        told = audit.read_view(conn, "tenant_policies", filters={}, after=None, limit=9)
    assert [(one["previous"], one["on_upgrade"]) for one in told] == [(None, "stay"), ("stay", None)]
    assert {str(one["set_by"]).partition(":")[0] for one in told} == {"cli"}


def test_a_policy_that_there_is_not_is_refused_with_those_that_there_are(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("tenants", "policy", "acme", "leave")
    error = capsys.readouterr().err
    assert "on_upgrade" in error
    assert all(choice in error for choice in ("replay", "stay", "stay_strict", "default"))


def test_limits_are_set_as_a_whole_and_listed(run: Run, engine: Engine) -> None:
    run("keys", "create", "tenant", "--tenant", "acme")
    run("tenants", "limit", "acme", "--items", "3", "--tokens", "1000")
    assert run("tenants", "ls") == ["acme  on_upgrade=replay  items=3 tokens=1000"]
    run("tenants", "limit", "acme", "--concurrent-turns", "2")
    with engine.begin() as conn:
        assert tenants.find_tenant(conn, TenantId("acme")).limits == Limits(concurrent_turns=2)
