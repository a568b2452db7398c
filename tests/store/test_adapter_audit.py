"""In the record an engine is its base and each adapter that it served, and nothing else."""

from dataclasses import replace

from sqlalchemy import Connection, Row, text

from service.domain.events import FLEET, TurnCompleted
from service.domain.evidence import Loaded
from service.domain.fleet_events import AdapterServed, AdapterWithdrawn
from service.domain.revision import RevisionDigest
from tests.store.histories import (
    NEW_ENGINE,
    OLD_ENGINE,
    V12,
    V13,
    append,
    completed,
    created,
    loaded,
    pinned,
    said,
    started,
)
from tests.store.test_audit import register

LEGAL = RevisionDigest("rev_" + "1e" * 32)
ADAPTER = "ad" * 32
STREAM = f"adapters/{NEW_ENGINE}"
SERVED = AdapterServed(boot=NEW_ENGINE, model="legal", adapter=ADAPTER, revision=LEGAL)
WITHDRAWN = AdapterWithdrawn(boot=NEW_ENGINE, model="legal", revision=LEGAL)


def on_adapter(kv: Loaded | None = None) -> TurnCompleted:
    return completed(requested=LEGAL, measured=LEGAL, loaded=kv)


def answer(conn: Connection, turn: TurnCompleted, *, served: bool = True) -> Row[tuple[object, ...]]:
    register(conn, (OLD_ENGINE, V12), (NEW_ENGINE, V13))
    if served:
        append(conn, SERVED, stream=STREAM, tenant=FLEET)
    append(conn, created(), said("hi"), started(), pinned(revision=LEGAL), turn)
    return conn.execute(text("SELECT * FROM audit.turn_provenance")).one()


def test_a_turn_on_an_adapter_ran_on_what_its_engine_was_known_to_serve(conn: Connection) -> None:
    row = answer(conn, on_adapter())
    assert (row.prefill_revision, row.decode_registered_revision, row.adapter) == (LEGAL, LEGAL, ADAPTER)
    assert (row.first_divergence, row.cross_revision) == (None, False)


def test_so_did_one_from_kv_that_was_made_under_the_adapter(conn: Connection) -> None:
    row = answer(conn, on_adapter(loaded(LEGAL, NEW_ENGINE)))
    assert (row.artifact_revision, row.prefill_revision) == (LEGAL, LEGAL)
    assert (row.first_divergence, row.cross_revision) == (None, False)


def test_kv_of_the_bare_base_under_an_adapter_shows_up(conn: Connection) -> None:
    row = answer(conn, on_adapter(loaded(V13, NEW_ENGINE)))
    assert row.prefill_revision == V13
    assert row.first_divergence == f"artifact revision {V13} is not decode revision {LEGAL}"
    assert row.cross_revision


def test_kv_under_an_adapter_that_its_producer_never_served_shows_up(conn: Connection) -> None:
    row = answer(conn, on_adapter(loaded(LEGAL, OLD_ENGINE)))
    assert row.first_divergence == (
        f"prefill engine {OLD_ENGINE} registered as {V12}, which is not artifact revision {LEGAL}"
    )
    assert row.cross_revision


def test_an_adapter_that_the_engine_never_told_of_shows_up(conn: Connection) -> None:
    row = answer(conn, on_adapter(), served=False)
    assert row.adapter is None
    assert row.first_divergence == (
        f"decode engine {NEW_ENGINE} registered as {V13}, which is not decode revision {LEGAL}"
    )


def test_an_adapter_that_was_told_of_only_afterwards_shows_up(conn: Connection) -> None:
    answer(conn, on_adapter(), served=False)
    append(conn, SERVED, stream=STREAM, tenant=FLEET)
    row = conn.execute(text("SELECT * FROM audit.turn_provenance")).one()
    assert row.first_divergence is not None


def test_a_turn_on_the_base_of_an_engine_with_adapters_is_of_the_base(conn: Connection) -> None:
    append(conn, SERVED, stream=STREAM, tenant=FLEET)
    register(conn, (NEW_ENGINE, V13))
    append(conn, created(), said("hi"), started(), pinned(), completed())
    row = conn.execute(text("SELECT * FROM audit.turn_provenance")).one()
    assert (row.prefill_revision, row.decode_registered_revision, row.adapter) == (V13, V13, None)
    assert row.first_divergence is None


def test_each_stretch_in_which_an_adapter_was_served_is_listed(conn: Connection) -> None:
    other = replace(SERVED, model="style", revision=V12)
    append(conn, SERVED, other, WITHDRAWN, SERVED, stream=STREAM, tenant=FLEET)
    rows = conn.execute(text("SELECT * FROM audit.engine_adapters ORDER BY position")).all()
    assert [(r.engine, r.model, r.revision, r.adapter, r.withdrawn_at is None) for r in rows] == [
        (NEW_ENGINE, "legal", LEGAL, ADAPTER, False),
        (NEW_ENGINE, "style", V12, ADAPTER, True),
        (NEW_ENGINE, "legal", LEGAL, ADAPTER, True),
    ]
