"""Where `on_upgrade` was set decides on which revision a conversation goes on, and is recorded: the most specific level wins."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.domain.events import PolicyLevel
from tests.api.stack import TENANT, Stack

LEVELS = [PolicyLevel.TENANT, PolicyLevel.ALIAS, PolicyLevel.CONVERSATION, PolicyLevel.TURN]
SAID = {
    PolicyLevel.TENANT: "tenant loyal",
    PolicyLevel.ALIAS: "alias production",
    PolicyLevel.TURN: "the request of this turn",
    PolicyLevel.DEFAULT: "nobody: the default",
}


@pytest.mark.parametrize("level", [*LEVELS, PolicyLevel.DEFAULT])
def test_it_is_kept_where_it_was_set_whatever_less_specific_levels_say(
    stack: Stack, level: PolicyLevel
) -> None:
    most_specific = LEVELS.index(level) if level in LEVELS else -1
    bodies = [
        {"on_upgrade": "stay" if place == most_specific else "replay"} if place <= most_specific else {}
        for place in range(len(LEVELS))
    ]
    tenant, alias, conversation, turn = bodies
    client = stack.client(key_of_new_tenant(stack, tenant))
    old = stack.start_engine("a", alias=True)
    chat = client.post("/v1/conversations", json=conversation).json()["id"]
    client.post("/v1/responses", json={"input": "one", "conversation": chat}).raise_for_status()
    new = stack.start_engine("b")
    stack.point(new.revision, **alias)
    answer = client.post("/v1/responses", json={"input": "two", "conversation": chat} | turn).json()
    stays = level is not PolicyLevel.DEFAULT
    assert answer["revision"] == (old.revision if stays else new.revision)
    assert answer["revision_changed"] is not stays
    decided = stack.admin.get("/admin/audit/decisions", params={"conversation_id": chat}).json()["data"][-1]
    assert decided["turn_id"] == answer["id"]
    assert decided["policy"] == ("stay" if stays else "replay")
    assert decided["policy_set_by"] == SAID.get(level, f"conversation {chat}")


def test_a_tenants_own_is_changed_by_an_operator_and_holds_from_the_next_turn_on(stack: Stack) -> None:
    client = stack.client(key_of_new_tenant(stack, {"on_upgrade": "stay"}))
    old = stack.start_engine("a", alias=True)
    chat = client.post("/v1/conversations", json={}).json()["id"]
    new = stack.start_engine("b")

    def revision() -> str:
        answer = client.post("/v1/responses", json={"input": "on", "conversation": chat})
        return str(answer.raise_for_status().json()["revision"])

    assert revision() == old.revision
    stack.move_alias(new)
    assert revision() == old.revision
    changed = stack.admin.put("/admin/tenants/loyal/policy", json={"on_upgrade": "replay"})
    assert (changed.status_code, changed.json()["on_upgrade"]) == (200, "replay")
    assert revision() == new.revision


def test_each_change_of_a_tenants_own_is_on_record_with_who_made_it(stack: Stack) -> None:
    key_of_new_tenant(stack, {"on_upgrade": "stay"})
    for policy in ("stay", "stay_strict", None):
        body = {"on_upgrade": policy}
        stack.admin.put("/admin/tenants/loyal/policy", json=body).raise_for_status()
    assert stack.admin.get("/admin/tenants/loyal").json()["on_upgrade"] is None
    told = stack.admin.get("/admin/audit/tenant_policies", params={"tenant_id": "loyal"}).json()["data"]
    assert [(one["previous"], one["on_upgrade"]) for one in told] == [
        ("stay", "stay_strict"),
        ("stay_strict", None),
    ]
    assert all(one["set_by"].startswith("key_") for one in told)
    assert [one["held_until"] for one in told] == [told[1]["set_at"], None]


def test_two_that_change_it_at_once_are_recorded_one_after_the_other(stack: Stack) -> None:
    key_of_new_tenant(stack, {})
    policies = ["replay", "stay", "stay_strict"] * 4

    def change(policy: str) -> int:
        return stack.admin.put("/admin/tenants/loyal/policy", json={"on_upgrade": policy}).status_code

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(change, policies)) == {200}
    told = stack.admin.get("/admin/audit/tenant_policies", params={"tenant_id": "loyal"}).json()["data"]
    assert [one["previous"] for one in told] == [None, *(one["on_upgrade"] for one in told[:-1])]
    assert told[-1]["on_upgrade"] == stack.admin.get("/admin/tenants/loyal").json()["on_upgrade"]


def test_a_wrong_change_of_a_tenants_own_is_refused_by_name(shared_stack: Stack) -> None:
    path = f"/admin/tenants/{TENANT}/policy"
    wrong = shared_stack.admin.put(path, json={"on_upgrade": "leave"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "on_upgrade")
    assert all(
        choice in wrong.json()["error"]["message"] for choice in ("'replay'", "'stay'", "'stay_strict'")
    )
    missing = shared_stack.admin.put(path, json={})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "on_upgrade")
    unknown = shared_stack.admin.put("/admin/tenants/nobody/policy", json={"on_upgrade": "stay"})
    assert unknown.status_code == 404
    assert "nobody" in unknown.json()["error"]["message"]
    assert shared_stack.http.put(path, json={"on_upgrade": "stay"}).status_code == 403


def key_of_new_tenant(stack: Stack, tenant: dict[str, Any]) -> str:
    stack.admin.put("/admin/tenants/loyal", json=tenant).raise_for_status()
    made = stack.admin.post("/admin/keys", json={"scope": "tenant", "tenant": "loyal"}).json()
    return str(made["secret"])
