"""Turns on adapters: an alias that points at (base, adapter), moves between them, and what operators and auditors see of it."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import text as sql

from service.domain.artifact import BootId
from service.domain.events import KvRefused
from tests.api.stack import PATIENCE_S, Stack, eventually
from tests.engines.simulated import SimulatedEngine

A, B = "a" * 64, "b" * 64
OPEN_TURNS = sql("SELECT count(*) FROM turns WHERE NOT closed")
LONG = "tell me all that there is to tell of it"


def text(answer: dict[str, Any]) -> str:
    said: str = answer["output"][0]["content"][0]["text"]
    return said


def assert_cold(answer: dict[str, Any], engine: SimulatedEngine, model: str | None) -> None:
    """In the very words that the engine has for that prompt, without any KV, under the adapter of that name."""
    assert engine.requests[-1].get("model") == model
    assert answer["revision"] == engine.computed_under(model).digest
    assert text(answer) == engine.cold_text(engine.prompts[-1], model=model)
    names = [None, *engine.adapters]
    assert len({engine.cold_text(engine.prompts[-1], model=name) for name in names}) == len(names)


@pytest.fixture
def engine(stack: Stack) -> SimulatedEngine:
    """With adapters `legal` and `style` beside the base, and `production` on the base."""
    made = stack.start_engine("a", alias=True)
    stack.load_adapter(made, "legal", A)
    stack.load_adapter(made, "style", B)
    return made


def test_an_alias_points_at_an_adapter_and_its_turns_are_answered_with_it(
    stack: Stack, engine: SimulatedEngine
) -> None:
    stack.point(engine.computed_under("legal").digest)
    conversation = stack.conversation()
    first = stack.ask(LONG, conversation=conversation)
    assert_cold(first, engine, "legal")
    stack.await_artifacts(conversation, 1)
    second = stack.ask("and then?", conversation=conversation)
    assert_cold(second, engine, "legal")
    assert (second["kv"]["source"], second["revision_changed"]) == ("reused", False)


@pytest.mark.parametrize(("before", "after"), [(None, "legal"), ("legal", "style"), ("style", None)], ids=str)
def test_a_move_between_base_and_adapters_refuses_the_old_kv_and_rebuilds_it(
    stack: Stack, engine: SimulatedEngine, before: str | None, after: str | None
) -> None:
    stack.point(engine.computed_under(before).digest)
    conversation = stack.conversation()
    assert_cold(stack.ask(LONG, conversation=conversation), engine, before)
    [old] = stack.await_artifacts(conversation, 1)
    stack.point(engine.computed_under(after).digest)
    answer = stack.ask("and then?", conversation=conversation)
    assert_cold(answer, engine, after)
    assert (answer["kv"]["plan"], answer["kv"]["source"]) == ("rebuild", "rebuilt")
    assert answer["kv"]["refusal"] == {"reason": "revision_mismatch", "differing_fields": ["adapter"]}
    assert answer["revision_changed"] is True
    refused = next(e for e in stack.events(conversation) if isinstance(e, KvRefused))
    assert (refused.refusal.artifact, refused.engine_revision) == (old, answer["revision"])
    rebuild = engine.requests[-2]
    assert rebuild["sampling_params"]["max_tokens"] == 1
    assert rebuild.get("model") == after


def test_a_turn_that_stays_is_answered_with_the_adapter_that_it_had(
    stack: Stack, engine: SimulatedEngine
) -> None:
    stack.point(engine.computed_under("legal").digest)
    conversation = stack.conversation()
    stack.ask(LONG, conversation=conversation)
    stack.point(engine.computed_under("style").digest)
    assert_cold(stack.ask("and then?", conversation=conversation, on_upgrade="stay"), engine, "legal")


def test_the_next_of_two_engines_knows_the_same_adapter_by_another_name(
    stack: Stack, engine: SimulatedEngine
) -> None:
    """Its KV is good there: a name is no part of a revision."""
    stack.point(engine.computed_under("legal").digest)
    conversation = stack.conversation()
    stack.ask(LONG, conversation=conversation)
    stack.await_artifacts(conversation, 1)
    other = stack.start_engine("a")
    stack.load_adapter(other, "jus", A)
    assert stack.admin.post(f"/admin/engines/{engine.boot}/drain").status_code == 200
    answer = stack.ask("and then?", conversation=conversation)
    assert other.requests[-1]["model"] == "jus"
    assert (answer["kv"]["source"], answer["kv"]["refusal"]) == ("reused", None)
    assert text(answer) == other.cold_text(other.prompts[-1], model="jus")


def test_a_turn_waits_for_its_adapter_and_goes_on_when_it_is_loaded(stack: Stack) -> None:
    engine = stack.start_engine("a")
    revision = stack.load_adapter(engine, "legal", A)
    stack.point(revision)
    del engine.adapters["legal"]
    stack.tell_adapters(engine)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(stack.ask, LONG)
        with stack.database.connect() as conn:
            eventually(lambda: conn.execute(OPEN_TURNS).scalar_one() == 1)
        assert engine.requests == []
        stack.load_adapter(engine, "legal 2", A)
        assert answer.result(timeout=PATIENCE_S)["revision"] == revision
    assert engine.requests[-1]["model"] == "legal 2"


def test_an_adapter_that_was_unloaded_a_moment_ago_costs_the_turn_a_try(
    stack: Stack, engine: SimulatedEngine
) -> None:
    """The service does not know yet; the engine itself says that it is not what the turn is for."""
    revision = engine.computed_under("legal").digest
    stack.point(revision)
    other = stack.start_engine("a", boot="boot_zz")
    stack.load_adapter(other, "legal", A)
    del engine.adapters["legal"]
    first, second = sorted((engine, other), key=lambda e: e.boot)
    assert second is other, "the engine that lost it is asked first"
    answer = stack.ask(LONG)
    assert answer["revision"] == revision
    assert (first.requests, len(other.requests)) == ([], 1)


def test_operators_see_the_adapters_of_each_engine(stack: Stack, engine: SimulatedEngine) -> None:
    plain = stack.start_engine("b")
    listed = {e["boot"]: e for e in stack.admin.get("/admin/engines").json()["data"]}
    assert listed[plain.boot]["adapters"] == []
    assert listed[engine.boot]["revision"] == engine.revision
    assert "model" not in listed[engine.boot]
    assert listed[engine.boot]["adapters"] == [
        {"model": name, "revision": engine.computed_under(name).digest, "reason": None}
        for name in ("legal", "style")
    ]


def test_an_adapter_without_identity_is_listed_with_the_reason_and_gets_no_turn(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    told = {"adapters": [{"model": "raw", "reason": "it was loaded from '/somewhere'"}]}
    answer = stack.admin.put(f"/admin/engines/{engine.boot}/adapters", json=told)
    assert (answer.status_code, answer.json()) == (200, {"boot": engine.boot} | told)
    [listed] = stack.admin.get("/admin/engines").json()["data"]
    assert listed["adapters"] == [
        {"model": "raw", "revision": None, "reason": "it was loaded from '/somewhere'"}
    ]
    assert [r["revision"] for r in stack.admin.get("/admin/revisions").json()["data"]] == [engine.revision]
    beat = stack.admin.post(f"/admin/engines/{engine.boot}/heartbeat").json()
    assert beat["adapters"] == {"raw": None}


def test_the_descriptor_of_an_adapters_revision_can_be_read(stack: Stack, engine: SimulatedEngine) -> None:
    own = engine.computed_under("legal")
    found = stack.admin.get(f"/admin/revisions/{own.digest}").json()
    assert found["descriptor"] == own.to_json()
    assert found["descriptor"]["kv"]["adapter"] == A


@pytest.mark.parametrize(
    ("told", "param"),
    [
        ({}, "adapters"),
        ({"adapters": {}}, "adapters"),
        ({"adapters": [{"model": "legal"}]}, "adapters[0]"),
        ({"adapters": [{"model": "legal", "adapter": "none", "revision": "rev_"}]}, "adapters[0].adapter"),
        ({"adapters": [], "base": 1}, "base"),
    ],
    ids=str,
)
def test_a_wrong_field_of_an_adapter_is_named(shared_stack: Stack, told: dict[str, Any], param: str) -> None:
    answer = shared_stack.admin.put(f"/admin/engines/{shared_stack.engines[0].boot}/adapters", json=told)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_revision_that_the_engine_cannot_be_is_refused(shared_stack: Stack) -> None:
    engine = shared_stack.engines[0]
    told = [{"model": "legal", "adapter": A, "revision": engine.revision}]
    answer = shared_stack.admin.put(f"/admin/engines/{engine.boot}/adapters", json={"adapters": told})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "revision_mismatch")
    assert answer.json()["error"]["differing_fields"] == ["adapter"]
    unknown = BootId("boot_unknown")
    answer = shared_stack.admin.put(f"/admin/engines/{unknown}/adapters", json={"adapters": []})
    assert answer.status_code == 404


def test_an_alias_counts_the_engines_that_serve_its_adapter(stack: Stack, engine: SimulatedEngine) -> None:
    stack.load_adapter(engine, "law", A)
    stack.point(engine.computed_under("legal").digest, "lawyers")
    stack.point(engine.revision, "plain")
    ready = stack.client("").get("/readyz").json()["ready_engines"]
    assert (ready["lawyers"], ready["plain"]) == (1, 1)


def test_the_audit_shows_the_revision_that_the_engine_measured(stack: Stack, engine: SimulatedEngine) -> None:
    base, legal = engine.revision, engine.computed_under("legal").digest
    conversation = stack.conversation()
    stack.ask(LONG, conversation=conversation)
    stack.await_artifacts(conversation, 1)
    stack.point(legal)
    stack.ask("and then?", conversation=conversation)
    rows = stack.admin.get("/admin/audit/turn_provenance", params={"conversation_id": conversation}).json()[
        "data"
    ]
    found = [
        [
            row[name]
            for name in ("decode_revision", "decode_registered_revision", "prefill_revision", "adapter")
        ]
        for row in rows
    ]
    assert found == [[base, base, base, None], [legal, legal, legal, A]]
    assert [(row["first_divergence"], row["cross_revision"]) for row in rows] == [(None, False)] * 2
    served = stack.admin.get("/admin/audit/engine_adapters").json()["data"]
    assert [(row["engine"], row["model"], row["revision"]) for row in served] == [
        (engine.boot, name, engine.computed_under(name).digest) for name in ("legal", "style")
    ]
