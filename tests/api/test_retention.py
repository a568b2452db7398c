"""`/admin/tenants/{tenant}/retention`: an operator's word on how long a tenant's conversations are kept."""

import pytest

from tests.api.stack import TENANT, Stack

PATH = f"/admin/tenants/{TENANT}/retention"


def test_it_is_set_read_and_taken_back(stack: Stack) -> None:
    assert stack.admin.get(PATH).json() == {"tenant": TENANT, "after_days": None}
    made = stack.admin.put(PATH, json={"after_days": 90}).json()
    assert (made["after_days"], made["set_by"][:4]) == (90, "key_")
    assert stack.admin.get(PATH).json() == made
    assert stack.admin.delete(PATH).json()["after_days"] is None


@pytest.mark.parametrize("days", [0, -1, 36501, 1.5, "7", None])
def test_days_that_are_none_are_refused_by_name(shared_stack: Stack, days: object) -> None:
    answer = shared_stack.admin.put(PATH, json={"after_days": days})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after_days")


def test_only_an_operator_may_and_only_for_a_tenant_that_there_is(shared_stack: Stack) -> None:
    assert shared_stack.http.get(PATH).status_code == 403
    assert shared_stack.http.put(PATH, json={"after_days": 1}).status_code == 403
    nobody = "/admin/tenants/nobody/retention"
    assert shared_stack.admin.get(nobody).status_code == 404
    assert shared_stack.admin.put(nobody, json={"after_days": 1}).status_code == 404
    assert shared_stack.admin.delete(nobody).status_code == 404
