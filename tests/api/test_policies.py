"""Where `on_upgrade` was set decides on which revision a conversation goes on, and is recorded: the most specific level wins."""

from typing import Any

import pytest

from service.domain.events import PolicyLevel
from tests.api.stack import Stack

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


def key_of_new_tenant(stack: Stack, tenant: dict[str, Any]) -> str:
    stack.admin.put("/admin/tenants/loyal", json=tenant).raise_for_status()
    made = stack.admin.post("/admin/keys", json={"scope": "tenant", "tenant": "loyal"}).json()
    return str(made["secret"])
