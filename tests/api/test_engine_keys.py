"""Engines register with keys of their own, at addresses that the operator allows; such a key opens nothing else."""

from typing import Any

import httpx
import pytest

from service.domain.errors import InvalidInput
from service.domain.events import TurnCompleted
from service.settings import read_settings
from tests.api.stack import Stack, running_stack
from tests.api.test_admin import ADDRESS, BOOT, engine_body
from tests.engines.simulated import SimulatedEngine


def engine_key(stack: Stack) -> tuple[str, httpx.Client]:
    made = stack.admin.post("/admin/keys", json={"scope": "engine", "label": "gpu-1"}).json()
    return made["key_id"], stack.client(made["secret"])


def test_an_engine_s_key_does_all_that_its_launcher_needs(stack: Stack) -> None:
    _, client = engine_key(stack)
    registered = client.post("/admin/engines", json=engine_body())
    assert registered.status_code == 201
    assert client.get(f"/admin/revisions/{registered.json()['revision']}").status_code == 200
    assert client.post(f"/admin/engines/{BOOT}/heartbeat").status_code == 200
    assert client.put(f"/admin/engines/{BOOT}/adapters", json={"adapters": []}).status_code == 200
    assert client.post("/admin/engines", json=engine_body()).status_code == 201
    assert client.post(f"/admin/engines/{BOOT}/drain?force=true").status_code == 200
    assert client.delete(f"/admin/engines/{BOOT}?force=true").status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/admin/engines", None),
        ("PUT", "/admin/aliases/production", {"revision": "rev_" + "0" * 64}),
        ("POST", "/admin/rollouts", {"alias": "production", "to": "rev_" + "0" * 64}),
        ("POST", "/admin/keys", {"scope": "operator"}),
        ("GET", "/admin/audit/turns", None),
        ("DELETE", "/admin/revisions/rev_" + "0" * 64 + "/canary", None),
        ("POST", "/v1/responses", {"input": "hello"}),
    ],
)
def test_it_opens_nothing_else(
    shared_stack: Stack, method: str, path: str, body: dict[str, Any] | None
) -> None:
    _, client = engine_key(shared_stack)
    assert client.request(method, path, json=body).status_code == 403


def test_an_engine_that_was_registered_with_another_key_is_out_of_its_reach(stack: Stack) -> None:
    _, first = engine_key(stack)
    _, second = engine_key(stack)
    first.post("/admin/engines", json=engine_body())
    for refused in (
        second.post("/admin/engines", json=engine_body(address="http://127.0.0.1:9998")),
        second.post(f"/admin/engines/{BOOT}/heartbeat"),
        second.put(f"/admin/engines/{BOOT}/adapters", json={"adapters": []}),
        second.post(f"/admin/engines/{BOOT}/drain?force=true"),
        second.delete(f"/admin/engines/{BOOT}?force=true"),
    ):
        assert refused.status_code == 403
        assert "was not registered with this key" in refused.json()["error"]["message"]
    [engine] = stack.admin.get("/admin/engines").json()["data"]
    assert (engine["state"], engine["address"]) == ("ready", ADDRESS)
    assert stack.admin.delete(f"/admin/engines/{BOOT}").status_code == 204, "an operator's reaches all"


def test_a_key_that_came_in_its_place_speaks_for_its_engines(stack: Stack) -> None:
    key, first = engine_key(stack)
    first.post("/admin/engines", json=engine_body())
    secret = stack.admin.post(f"/admin/keys/{key}/rotate", json={}).json()["secret"]
    assert first.post(f"/admin/engines/{BOOT}/heartbeat").status_code == 401
    assert stack.client(secret).post(f"/admin/engines/{BOOT}/heartbeat").status_code == 200


def test_an_unknown_boot_is_said_to_be_unknown(shared_stack: Stack) -> None:
    _, client = engine_key(shared_stack)
    assert client.post("/admin/engines/boot_nobody/heartbeat").status_code == 404


def test_a_registration_of_what_another_process_is_serves_no_turn(database: str) -> None:
    """Stolen, or left from before the process at that address was started anew."""
    with (
        running_stack(database, turn_wait_s=0.5, engine_lease_s=60) as stack,
        SimulatedEngine("a", stack.store) as there,
    ):
        _, client = engine_key(stack)
        client.post("/admin/engines", json=engine_body(address=there.address))
        stack.point(there.revision)
        chat = stack.conversation()
        refused = stack.post(input="hello", conversation=chat)
        assert refused.status_code == 503
        assert there.prompts == []
        assert not any(isinstance(event, TurnCompleted) for event in stack.events(chat))


def test_a_network_that_is_none_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTURN_DATABASE_URL", "postgresql://localhost/x")
    monkeypatch.setenv("EVERTURN_ENGINE_HOSTS", '["10.1.0.7/16"]')
    with pytest.raises(InvalidInput, match=r"EVERTURN_ENGINE_HOSTS: .*10\.1\.0\.7/16 has host bits set"):
        read_settings()
