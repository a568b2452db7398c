"""Erasing a conversation takes all that was said, ends what is under way, and leaves a record that still verifies."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service import conversation_flow, turn_flow, turn_log
from service.domain.conversation import Conversation
from service.domain.cuts import Chunk
from service.domain.errors import FenceLost, Gone, NotFound
from service.domain.events import ConversationId, Role, TenantId, TurnFailed
from service.domain.new_items import NewMessage
from service.erasure_flow import Erasure, erase_conversation
from service.store import artifacts, event_store, turn_chunks, turns
from service.store.end_users import conversations_of
from service.store.integrity import Walked, verify
from service.store.turn_chunks import Said
from tests.flows.fleet import (
    ACME,
    NOW,
    Running,
    accept,
    answered,
    complete,
    completed,
    events_of,
    new_id,
    pin,
    published,
)
from tests.store.histories import V13

SECRET = "the secret that must not stay"
SO_FAR = "what the answer has said so far"


def erase(conn: Connection, conversation: ConversationId, tenant: TenantId = ACME) -> Erasure:
    return erase_conversation(
        conn, tenant=tenant, conversation=conversation, by="key_op", reason="asked for", now=NOW
    )


def load(conn: Connection, conversation: ConversationId) -> Conversation:
    return event_store.load_conversation(conn, ACME, conversation)


def everything_stored(conn: Connection) -> str:
    """Of every table that there is, those to come as well."""
    tables = conn.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars()
    everything = " UNION ALL ".join(f"SELECT t::text FROM {table} AS t" for table in tables)  # noqa: S608 ours
    rows = conn.execute(text(everything)).scalars()
    return "\n".join(rows)


def test_nothing_that_was_said_stays_in_any_table(conn: Connection) -> None:
    running = answered(conn)
    said = (NewMessage(role=Role.USER, text=SECRET),)
    turn_flow.fail_turn(
        conn,
        tenant=ACME,
        conversation=running.conversation,
        turn=running.turn,
        code="x",
        message="y",
        now=NOW,
    )
    open_turn = accept(
        conn,
        conversation=running.conversation,
        messages=said,
        metadata={"note": SECRET},
        idempotency_key="their-key",
        request_hash="hash-of-the-secret",
    ).turn
    chunk = Chunk(number=0, claim=0, attempt=1, revision=V13, pieces=(len(SO_FAR),), text=SO_FAR)
    told = [Said(tenant=ACME, turn=open_turn, chunk=chunk)]
    assert turn_chunks.keep(conn, told, owner="api_test") == {open_turn}
    held = everything_stored(conn)
    assert SECRET.encode().hex() in held
    assert SO_FAR.encode().hex() in held
    assert "their-key" in held
    erased = erase(conn, running.conversation)
    assert erased.fresh
    assert erased.contents > 3
    left = everything_stored(conn)
    for trace in (SECRET, SECRET.encode().hex(), SO_FAR.encode().hex(), "their-key", "hash-of-the-secret"):
        assert trace not in left
    assert conn.execute(text("SELECT count(*) FROM event_contents")).scalar_one() == 0


def test_the_record_stays_and_verifies(conn: Connection) -> None:
    running = answered(conn)
    before = [type(event) for event in events_of(conn, running)]
    erase(conn, running.conversation)
    after = [type(event) for event in events_of(conn, running)]
    assert after[: len(before)] == before
    walked = Walked()
    assert list(verify(conn, walked)) == []
    assert walked.erased == 1


def test_a_turn_under_way_is_ended_and_its_late_answer_is_fenced_off(conn: Connection) -> None:
    running = answered(conn)
    pinned = pin(conn, running)
    erase(conn, running.conversation)
    failed = [event for event in events_of(conn, running) if isinstance(event, TurnFailed)]
    assert [event.code for event in failed] == ["conversation_erased"]
    with pytest.raises(FenceLost):
        complete(conn, running, completed(pinned))
    assert not turns.renew_lease(conn, turn=running.turn, owner="api_test", lease_s=9)
    assert load(conn, running.conversation).erased is not None


def test_it_can_be_neither_read_nor_continued_nor_changed(conn: Connection) -> None:
    running = answered(conn)
    erase(conn, running.conversation)
    tries: list[Any] = [
        lambda: conversation_flow.find_conversation(conn, ACME, running.conversation),
        lambda: conversation_flow.find_response(conn, ACME, running.turn),
        lambda: accept(conn, conversation=running.conversation),
        lambda: accept(conn, previous=running.turn),
    ]
    for attempt in tries:
        with pytest.raises(Gone, match="erased for good"):
            attempt()


def test_erasing_again_changes_nothing_and_names_the_kv_again(conn: Connection) -> None:
    running = answered(conn)
    kv = published(pin(conn, running).engine)
    artifacts.record(conn, tenant=ACME, conversation=running.conversation, published=kv, now=NOW)
    first = erase(conn, running.conversation)
    assert first.artifacts == (kv.artifact,)
    assert artifacts.list_artifacts(conn, running.conversation) == []
    version = load(conn, running.conversation).version
    again = erase(conn, running.conversation)
    assert (again.fresh, again.contents) == (False, 0)
    assert load(conn, running.conversation).version == version


def test_kv_whose_row_has_vanished_is_named_by_the_events(conn: Connection) -> None:
    running = answered(conn)
    pinned = pin(conn, running)
    kv = published(pinned.engine).artifact
    complete(conn, running, replace(completed(pinned), published=kv))
    assert erase(conn, running.conversation).artifacts == (kv,)
    assert erase(conn, running.conversation).artifacts == (kv,)


def test_another_tenants_conversation_is_not_there(conn: Connection) -> None:
    running = answered(conn)
    for tenant, conversation in ((TenantId("other"), running.conversation), (ACME, ConversationId("conv_x"))):
        with pytest.raises(NotFound):
            erase(conn, conversation, tenant)
    assert load(conn, running.conversation).erased is None


def test_a_persons_conversations_are_found_by_their_metadata(conn: Connection) -> None:
    answered(conn)

    def made(**metadata: str) -> ConversationId:
        return conversation_flow.create_conversation(
            conn,
            tenant=ACME,
            alias="production",
            on_upgrade=None,
            metadata=metadata,
            messages=(),
            now=NOW,
            new_id=new_id,
        )

    mine, theirs, also_mine = made(user="u-17"), made(user="u-18"), made(user="u-17", x="y")
    found = conversations_of(conn, tenant=ACME, key="user", value="u-17")
    assert set(found) == {mine, also_mine}
    erase(conn, mine)
    assert conversations_of(conn, tenant=ACME, key="user", value="u-17") == [also_mine]
    assert load(conn, theirs).erased is None


def test_others_keep_every_word(conn: Connection) -> None:
    running = answered(conn)
    other = Running(conversation=(kept := accept(conn)).conversation, turn=kept.turn)
    before = load(conn, other.conversation)
    erase(conn, running.conversation)
    assert load(conn, other.conversation) == before


def test_kv_that_is_published_after_the_erasure_is_to_be_deleted(conn: Connection) -> None:
    running = answered(conn)
    kv = published(pin(conn, running).engine)
    erase(conn, running.conversation)
    conn.execute(text("SET LOCAL ROLE everturn_service"))
    conn.execute(text("SELECT set_config('app.tenant', 'acme', true)"))
    turn_log.record_published(conn, tenant=ACME, conversation=running.conversation, published=kv, now=NOW)
    conn.execute(text("SET LOCAL ROLE everturn_fleet"))
    assert artifacts.list_artifacts(conn, running.conversation) == []
    assert conn.execute(text("SELECT artifact_id FROM kv_deletions")).scalars().all() == [kv.artifact]
    assert conn.execute(text("SELECT kv_left FROM audit.erasures")).scalar_one() == 1


def test_all_kv_of_it_is_to_be_deleted_and_no_others(conn: Connection) -> None:
    running = answered(conn)
    engine = pin(conn, running).engine
    other = accept(conn)
    for chat, handle in ((running.conversation, "kv_11111111"), (other.conversation, "kv_22222222")):
        artifacts.record(conn, tenant=ACME, conversation=chat, published=published(engine, handle), now=NOW)
    erase(conn, running.conversation)
    erase(conn, running.conversation)
    waiting = conn.execute(text("SELECT artifact_id, conversation_id, state FROM audit.kv_deletions"))
    assert [tuple(row) for row in waiting] == [("kv_11111111", running.conversation, "waiting")]
