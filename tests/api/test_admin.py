"""Operators' routes: what the launcher and a rollout need, and what they are refused."""

from typing import Any

import pytest

from service.domain.artifact import BootId
from service.domain.events import FLEET, AliasMoved, OnUpgrade
from service.domain.fleet_events import EngineRegistered
from service.store import event_store
from tests.api.stack import Stack, running_stack
from tests.engines.simulated import descriptor

BOOT = BootId("boot_0123456789abcdef")
ADDRESS = "http://127.0.0.1:9999"


def engine_body(weights: str = "a", **changes: Any) -> dict[str, Any]:
    body = {"boot": BOOT, "address": ADDRESS, "role": "both", "descriptor": descriptor(weights).to_json()}
    return body | changes


def fleet_events(stack: Stack, stream: str) -> list[object]:
    with stack.database.begin() as conn:
        return list(event_store.read(conn, tenant=FLEET, stream=stream))


def test_a_revision_is_known_by_the_digest_of_its_descriptor(stack: Stack) -> None:
    document = descriptor("a").to_json()
    answer = stack.admin.post("/admin/revisions", json={"descriptor": document, "label": "first"})
    digest = descriptor("a").digest
    assert (answer.status_code, answer.json()) == (201, {"revision": digest})
    assert stack.admin.get(f"/admin/revisions/{digest}").json() == {
        "revision": digest,
        "descriptor": document,
    }
    listed = stack.admin.get("/admin/revisions").json()["data"]
    assert [(r["revision"], r["label"]) for r in listed] == [(digest, "first")]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"weights": "latest"}, "kv.weights"),
        ({"kv_dtype": "auto"}, "kv.kv_dtype"),
        ({"block_size": "4"}, "kv.block_size"),
    ],
)
def test_a_descriptor_that_identifies_nothing_is_refused(
    shared_stack: Stack, change: dict[str, Any], param: str
) -> None:
    document = descriptor("a").to_json()
    document["kv"] |= change
    answer = shared_stack.admin.post("/admin/revisions", json={"descriptor": document})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_alias_moves_and_each_move_is_a_fact(stack: Stack) -> None:
    for weights in ("a", "b"):
        stack.admin.post("/admin/revisions", json={"descriptor": descriptor(weights).to_json()})
    one, two = descriptor("a").digest, descriptor("b").digest
    for revision in (one, one, two):
        answer = stack.admin.put(
            "/admin/aliases/production", json={"revision": revision, "on_upgrade": "stay", "by": "me"}
        )
    assert answer.json() == {"name": "production", "revision": two, "previous": one, "on_upgrade": "stay"}
    stay = OnUpgrade.STAY
    assert fleet_events(stack, "alias/production") == [
        AliasMoved(alias="production", revision=one, previous=None, by="me", on_upgrade=stay),
        AliasMoved(alias="production", revision=two, previous=one, by="me", on_upgrade=stay),
    ]
    listed = stack.admin.get("/admin/aliases").json()["data"]
    assert listed == [{"name": "production", "revision": two, "on_upgrade": "stay"}]


def test_moving_an_alias_keeps_its_policy_unless_it_is_given_another(stack: Stack) -> None:
    stack.admin.post("/admin/revisions", json={"descriptor": descriptor("a").to_json()})
    where = {"revision": descriptor("a").digest, "by": "me"}

    def policies(*bodies: dict[str, Any]) -> list[str | None]:
        answers = [stack.admin.put("/admin/aliases/production", json=where | body) for body in bodies]
        return [answer.json()["on_upgrade"] for answer in answers]

    assert policies({"on_upgrade": "stay_strict"}, {}, {"on_upgrade": None}) == [
        "stay_strict",
        "stay_strict",
        None,
    ]
    moves = fleet_events(stack, "alias/production")
    assert [m.on_upgrade for m in moves if isinstance(m, AliasMoved)] == [OnUpgrade.STAY_STRICT, None]


@pytest.mark.parametrize(
    ("name", "revision", "status", "param"),
    [
        ("production", "rev_" + "0" * 64, 404, "revision"),
        ("production", "v13", 400, "revision"),
        ("production", "latest", 400, "revision"),
        ("a b", None, 400, "name"),
    ],
)
def test_an_alias_goes_nowhere_else(
    shared_stack: Stack, name: str, revision: str | None, status: int, param: str
) -> None:
    body = {"revision": revision or shared_stack.alias_revision()}
    answer = shared_stack.admin.put(f"/admin/aliases/{name}", json=body)
    assert answer.status_code == status
    assert answer.json()["error"]["param"] == param


def test_an_engine_registers_under_what_it_measured(stack: Stack) -> None:
    answer = stack.admin.post("/admin/engines", json=engine_body())
    digest = descriptor("a").digest
    assert answer.status_code == 201
    assert answer.json() == {"boot": BOOT, "revision": digest, "lease_s": stack.settings.engine_lease_s}
    again = stack.admin.post("/admin/engines", json=engine_body())
    assert again.status_code == 201
    assert fleet_events(stack, f"engine/{BOOT}") == [
        EngineRegistered(boot=BOOT, revision=digest, address=ADDRESS, role="both")
    ]
    listed = stack.admin.get("/admin/engines").json()["data"]
    assert [(e["boot"], e["revision"], e["state"], e["load"]) for e in listed] == [(BOOT, digest, "ready", 0)]


def test_an_engine_that_is_not_what_was_expected_is_refused_with_the_fields(stack: Stack) -> None:
    wanted = descriptor("b")
    stack.admin.post("/admin/revisions", json={"descriptor": wanted.to_json()})
    answer = stack.admin.post("/admin/engines", json=engine_body(expected_revision=wanted.digest))
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "revision_mismatch"
    assert answer.json()["error"]["differing_fields"] == ["weights"]
    assert stack.admin.get("/admin/engines").json() == {"data": []}


def test_a_boot_never_changes_its_revision(stack: Stack) -> None:
    stack.admin.post("/admin/engines", json=engine_body("a"))
    answer = stack.admin.post("/admin/engines", json=engine_body("b"))
    assert answer.status_code == 409
    assert answer.json()["error"]["differing_fields"] == ["weights"]


@pytest.mark.parametrize(
    "address",
    [
        "http://10.0.0.7:8000",
        "http://example.org:80",
        "file:///etc/passwd",
        "http://127.0.0.1",
        "http://user@127.0.0.1:80",
        "http://127.0.0.1:80/path",
        "http://127.0.0.1:99999",
        "127.0.0.1:80",
        "http://127.0.0.1.example.org:80",
        "http://127.0.0.1:80\n",
        "http://127.0\t.0.1:80",
    ],
)
def test_an_engine_may_only_be_where_engines_are(shared_stack: Stack, address: str) -> None:
    answer = shared_stack.admin.post("/admin/engines", json=engine_body(address=address))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "address"


def test_the_operator_says_where_engines_are(database: str) -> None:
    with running_stack(database, engine_hosts=("10.0.0.7",)) as stack:
        answer = stack.admin.post("/admin/engines", json=engine_body(address="http://10.0.0.7:8000/"))
        assert answer.status_code == 201
        assert stack.admin.get("/admin/engines").json()["data"][0]["address"] == "http://10.0.0.7:8000"


def test_a_heartbeat_keeps_an_engine_and_an_unknown_boot_must_register(stack: Stack) -> None:
    assert stack.admin.post(f"/admin/engines/{BOOT}/heartbeat").status_code == 404
    stack.admin.post("/admin/engines", json=engine_body())
    answer = stack.admin.post(f"/admin/engines/{BOOT}/heartbeat")
    assert answer.json() == {"lease_s": stack.settings.engine_lease_s, "adapters": {}}
    assert stack.admin.delete(f"/admin/engines/{BOOT}").status_code == 204
    assert stack.admin.post(f"/admin/engines/{BOOT}/heartbeat").status_code == 404


def test_a_heartbeat_tells_how_busy_the_engine_finds_itself(stack: Stack) -> None:
    stack.admin.post("/admin/engines", json=engine_body())
    path = f"/admin/engines/{BOOT}/heartbeat"

    def listed() -> int | None:
        found: int | None = stack.admin.get("/admin/engines").json()["data"][0]["requests"]
        return found

    assert listed() is None
    assert stack.admin.post(path, params={"requests": 3}).status_code == 200
    assert listed() == 3
    assert stack.admin.post(path, params={"requests": -1}).status_code == 400
    assert listed() == 3
    assert stack.admin.post(path).status_code == 200, "as a launcher of the version before sends it"
    assert listed() is None


def test_draining_an_unknown_engine_is_not_found(shared_stack: Stack) -> None:
    assert shared_stack.admin.post(f"/admin/engines/{BOOT}/drain").status_code == 404
    assert shared_stack.admin.delete(f"/admin/engines/{BOOT}").status_code == 404


def test_a_rebuild_can_be_read(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.start_engine("b", alias=True)
    stack.ask("two", conversation=conversation)
    found = stack.admin.get(f"/admin/rebuilds/{stack.rung[0]}").json()
    assert (found["state"], found["tokens_done"] > 0) == ("done", True)
    assert stack.admin.get("/admin/rebuilds/rb_nope").status_code == 404


@pytest.mark.parametrize("change", [{"boot": "x"}, {"role": "cook"}, {"port": 1}])
def test_a_wrong_field_of_an_engine_is_named(shared_stack: Stack, change: dict[str, Any]) -> None:
    answer = shared_stack.admin.post("/admin/engines", json=engine_body(**change))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(change))
