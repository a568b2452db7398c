"""What is remembered of stored KV: only the own, only the unexpired, newest first; and all of it may vanish."""

from dataclasses import replace
from datetime import timedelta
from time import time

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from service.domain.artifact import ArtifactId
from service.domain.events import ConversationId, TenantId
from service.domain.plan import StoredArtifact
from service.domain.revision import RevisionDigest
from service.store import artifacts, event_store
from tests.store.histories import (
    ACME,
    CHAT,
    KV,
    NEW_ENGINE,
    NOW,
    OLD_ENGINE,
    V12,
    V13,
    completed,
    created,
    loaded,
    pinned,
    published,
    refused,
    register_engines,
    said,
    started,
    store,
)

OTHER_KV = "kv_" + "1" * 32
LATER = int(time() * 1000) + 3_600_000


def record(
    conn: Connection,
    artifact: str = KV,
    *,
    age_s: float = 0,
    expires_ms: int = LATER,
    tokens: int = 32,
    revision: RevisionDigest = V12,
) -> None:
    artifacts.record(
        conn,
        tenant=ACME,
        conversation=CHAT,
        published=replace(published(artifact, expires_ms=expires_ms, tokens=tokens), revision=revision),
        now=NOW - timedelta(seconds=age_s),
    )


def names(conn: Connection) -> list[str]:
    return [found.artifact for found in artifacts.of_conversation(conn, ACME, CHAT)]


def test_a_recorded_artifact_is_found_with_what_the_plan_needs(conn: Connection) -> None:
    record(conn)
    assert artifacts.of_conversation(conn, ACME, CHAT) == [
        StoredArtifact(artifact=KV, revision=V12, producer=OLD_ENGINE, tokens=32)
    ]


def test_the_newest_comes_first(conn: Connection) -> None:
    record(conn, age_s=60)
    record(conn, OTHER_KV)
    assert names(conn) == [OTHER_KV, KV]


def test_an_expired_artifact_is_not_offered(conn: Connection) -> None:
    record(conn, expires_ms=int(time() * 1000) - 1000)
    assert names(conn) == []


def test_recording_twice_changes_nothing(conn: Connection) -> None:
    record(conn)
    record(conn, tokens=16)
    [found] = artifacts.of_conversation(conn, ACME, CHAT)
    assert found.tokens == 32


def test_a_forgotten_artifact_is_gone(conn: Connection) -> None:
    record(conn)
    record(conn, OTHER_KV)
    artifacts.forget(conn, KV)
    assert names(conn) == [OTHER_KV]


def test_another_tenant_or_conversation_sees_none(conn: Connection) -> None:
    record(conn)
    assert artifacts.of_conversation(conn, TenantId("other"), CHAT) == []
    assert artifacts.of_conversation(conn, ACME, ConversationId("conv_2")) == []


def test_a_name_that_could_leave_the_store_is_refused(conn: Connection) -> None:
    with pytest.raises(IntegrityError, match="ck_artifacts_artifact_id"):
        record(conn, "kv_../../etc/passwd")


def test_losing_every_row_about_kv_changes_neither_history_nor_audit(
    engine: Engine, owner_engine: Engine
) -> None:
    register_engines(engine, [(OLD_ENGINE, V12), (NEW_ENGINE, V13)])
    with engine.begin() as conn:
        record(conn)
    loads = loaded(V13, NEW_ENGINE)
    store(engine, created(), said("hi"), started(), pinned(), refused(), completed(loaded=loads))
    views = [text(f"TABLE audit.{view}") for view in ("turn_provenance", "refusals")]
    with engine.connect() as conn:
        before = [event_store.load_conversation(conn, ACME, CHAT), *[conn.execute(v).all() for v in views]]
    with owner_engine.begin() as conn:
        conn.execute(text("TRUNCATE artifacts, rebuilds, engines, engine_adapters, turns"))
    with engine.connect() as conn:
        after = [event_store.load_conversation(conn, ACME, CHAT), *[conn.execute(v).all() for v in views]]
        assert artifacts.of_conversation(conn, ACME, CHAT) == []
    assert after == before
    assert all(before)


def test_a_plan_chooses_from_the_newest_of_each_revision(conn: Connection) -> None:
    old = [f"kv_{number:032}" for number in range(artifacts.NEWEST + 2)]
    for age, name in enumerate(old, 100):
        record(conn, name, age_s=age)
    record(conn, OTHER_KV, age_s=10_000, revision=V13)
    assert names(conn) == [*old[: artifacts.NEWEST], OTHER_KV]


def test_how_much_an_artifact_holds_is_told_of_ones_own_under_its_revision(conn: Connection) -> None:
    record(conn, tokens=96)

    def of(tenant: str = ACME, chat: str = CHAT, artifact: str = KV, under: RevisionDigest = V12) -> int:
        return artifacts.tokens_of(
            conn, TenantId(tenant), ConversationId(chat), ArtifactId(artifact), under=under
        )

    assert of() == 96
    assert of(tenant="globex") == of(chat="conv_2") == of(artifact=OTHER_KV) == of(under=V13) == 0
