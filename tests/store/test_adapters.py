"""The adapters of an engine live and drain with it, and each makes it serve one more revision."""

from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from service.domain.adapter import Adapter, ServedAdapter, UnknownAdapter, effective
from service.domain.artifact import BootId
from service.domain.plan import EngineState
from service.domain.revision import RevisionDigest
from service.store import adapters, fleet
from service.store.connection import make_engine
from tests.store.histories import NEW_ENGINE, OLD_ENGINE, append, created, descriptor, pinned, started
from tests.store.test_fleet import open_turn, register

A, B = "a" * 64, "b" * 64
UNKNOWN = UnknownAdapter(model="raw", reason="loaded past us")


def known(conn: Connection, model: str, adapter: str = A) -> ServedAdapter:
    """Its revision registered."""
    revision = fleet.register_revision(conn, effective(descriptor(), adapter), label=None)
    return ServedAdapter(model=model, adapter=adapter, revision=revision)


def told(conn: Connection, *served: Adapter, boot: BootId = NEW_ENGINE) -> RevisionDigest:
    """The base of an engine that serves these."""
    base = register(conn, boot)
    adapters.replace_adapters(conn, boot, served)
    return base


def live(conn: Connection, *of: RevisionDigest) -> list[tuple[str, str | None, str]]:
    return [(e.boot, e.model, e.revision) for e in fleet.live_engines(conn, of or None)]


def test_an_engine_stands_in_the_fleet_once_for_each_revision_that_it_serves(conn: Connection) -> None:
    legal, style = known(conn, "legal"), known(conn, "style", B)
    base = told(conn, style, legal, UNKNOWN)
    assert live(conn) == [
        (NEW_ENGINE, None, base),
        (NEW_ENGINE, "legal", legal.revision),
        (NEW_ENGINE, "style", style.revision),
    ]


def test_a_plan_looks_only_at_the_revisions_that_it_is_about(conn: Connection) -> None:
    legal, style = known(conn, "legal"), known(conn, "style", B)
    base = told(conn, legal, style)
    assert live(conn, style.revision) == [(NEW_ENGINE, "style", style.revision)]
    assert live(conn, base, legal.revision) == [
        (NEW_ENGINE, None, base),
        (NEW_ENGINE, "legal", legal.revision),
    ]
    assert fleet.live_engines(conn, {None}) == []


def test_every_revision_of_a_boot_carries_the_whole_load_of_the_boot(conn: Connection) -> None:
    told(conn, known(conn, "legal"))
    open_turn(conn)
    append(conn, created(), started(), pinned())
    assert [engine.load for engine in fleet.live_engines(conn)] == [1, 1]


def test_adapters_drain_with_their_engine_and_go_with_it(conn: Connection) -> None:
    told(conn, known(conn, "legal"))
    fleet.set_engine_state(conn, boot=NEW_ENGINE, state=EngineState.DRAINING)
    assert [engine.state for engine in fleet.live_engines(conn)] == [EngineState.DRAINING] * 2
    fleet.set_engine_state(conn, boot=NEW_ENGINE, state=EngineState.GONE)
    assert fleet.live_engines(conn) == []


def test_adapters_end_with_the_lease_of_their_engine(conn: Connection) -> None:
    told(conn, known(conn, "legal"))
    assert fleet.heartbeat(conn, boot=NEW_ENGINE, lease_s=0)
    assert fleet.live_engines(conn) == []
    assert fleet.heartbeat(conn, boot=NEW_ENGINE, lease_s=60)
    assert len(fleet.live_engines(conn)) == 2


def test_an_engine_is_listed_once_whatever_it_serves(conn: Connection) -> None:
    base = told(conn, known(conn, "legal"), UNKNOWN)
    assert [(e.boot, e.revision, e.model) for e in fleet.list_engines(conn)] == [(NEW_ENGINE, base, None)]


def test_what_is_told_takes_the_place_of_what_was_told_before(conn: Connection) -> None:
    legal, style = known(conn, "legal"), known(conn, "style", B)
    told(conn, legal, boot=OLD_ENGINE)
    told(conn, legal, UNKNOWN)
    adapters.replace_adapters(conn, NEW_ENGINE, [style])
    assert adapters.held_adapters(conn, NEW_ENGINE) == {"style": style.revision}
    assert adapters.held_adapters(conn, OLD_ENGINE) == {"legal": legal.revision}
    adapters.replace_adapters(conn, NEW_ENGINE, [])
    assert adapters.held_adapters(conn, NEW_ENGINE) == {}


def test_one_without_identity_is_listed_with_the_reason(conn: Connection) -> None:
    legal = known(conn, "legal")
    told(conn, UNKNOWN, legal)
    assert adapters.list_adapters(conn) == {
        NEW_ENGINE: [
            {"model": "legal", "revision": legal.revision, "reason": None},
            {"model": "raw", "revision": None, "reason": "loaded past us"},
        ]
    }
    assert adapters.held_adapters(conn, NEW_ENGINE) == {"legal": legal.revision, "raw": None}


def test_waiting_turns_look_again_when_an_adapter_comes_or_goes(conn: Connection) -> None:
    legal = known(conn, "legal")
    told(conn)
    seen = [fleet.serving(conn)]
    changes: list[list[Adapter]] = [[legal], [legal, UNKNOWN], []]
    for served in changes:
        adapters.replace_adapters(conn, NEW_ENGINE, served)
        seen.append(fleet.serving(conn))
        assert fleet.serving(conn) == seen[-1], "and only then"
    assert len(set(seen[:3])) == 3
    assert seen[3] != seen[2]


def test_the_base_of_an_engine_is_found_while_it_is_in_the_fleet(conn: Connection) -> None:
    told(conn, known(conn, "legal"))
    assert fleet.find_base(conn, NEW_ENGINE) == descriptor()
    assert fleet.find_base(conn, OLD_ENGINE) is None
    fleet.set_engine_state(conn, boot=NEW_ENGINE, state=EngineState.GONE)
    assert fleet.find_base(conn, NEW_ENGINE) is None


@pytest.mark.parametrize(
    "values",
    [
        {"revision": "rev_" + "0" * 64},
        {"model": ""},
        {"revision": None},
        {"reason": "both"},
    ],
    ids=str,
)
def test_the_database_holds_each_row_to_be_known_or_explained(
    conn: Connection, values: dict[str, Any]
) -> None:
    legal = known(conn, "legal")
    register(conn)
    row = {"boot": NEW_ENGINE, "model": "legal", "revision": legal.revision, "reason": None}
    add = text(
        "INSERT INTO engine_adapters (boot, model, revision, reason) VALUES (:boot, :model, :revision, :reason)"
    )
    with pytest.raises(DBAPIError):
        conn.execute(add, row | values)


def test_a_tenants_transaction_reads_what_is_served_and_tells_nothing(
    shared_database: str, conn: Connection
) -> None:
    tenants = make_engine(shared_database, application_name="tests", role="everturn_service")
    with tenants.connect() as reader:
        assert fleet.live_engines(reader) == []
    for change in ("DELETE FROM engine_adapters", "UPDATE engine_adapters SET reason = 'x'"):
        with tenants.connect() as writer, pytest.raises(DBAPIError, match="permission denied"):
            writer.execute(text(change))
    tenants.dispose()
