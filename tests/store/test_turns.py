"""Open turns, their leases, and the one answer to each idempotency key."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from sqlalchemy import Connection, Engine, text

from service.domain.errors import ConversationLocked, Internal, VersionConflict
from service.domain.events import ConversationId, TenantId, TurnId
from service.store import turns
from service.store.turns import IdempotentTurn, OpenTurn
from tests.store.histories import ACME, CHAT, TURN

OTHER = TenantId("other")
SECOND = TurnId("resp_2")
RACERS = 8


def open_turn(
    conn: Connection,
    turn: TurnId = TURN,
    *,
    tenant: TenantId = ACME,
    conversation: ConversationId = CHAT,
    key: str | None = None,
    lease_s: float = 60,
) -> None:
    turns.open_turn(
        conn,
        tenant=tenant,
        turn=turn,
        conversation=conversation,
        idempotency_key=key,
        request_hash="hash",
        owner="api-1",
        lease_s=lease_s,
    )


def test_a_conversation_has_one_open_turn(conn: Connection) -> None:
    open_turn(conn)
    with pytest.raises(ConversationLocked, match=CHAT):
        open_turn(conn, SECOND)


def test_a_conversation_takes_the_next_turn_when_one_is_closed(conn: Connection) -> None:
    open_turn(conn)
    turns.close_turn(conn, tenant=ACME, turn=TURN)
    open_turn(conn, SECOND)
    assert turns.find_turn(conn, ACME, SECOND) == CHAT


def test_a_turn_cannot_be_opened_twice(conn: Connection) -> None:
    open_turn(conn)
    with pytest.raises(Internal, match="pk_turns"):
        open_turn(conn, conversation=ConversationId("conv_2"))


def test_a_turn_is_found_by_its_tenant_alone(conn: Connection) -> None:
    open_turn(conn)
    assert turns.find_turn(conn, ACME, TURN) == CHAT
    assert turns.find_turn(conn, OTHER, TURN) is None


def test_a_key_names_the_turn_that_it_opened(conn: Connection) -> None:
    open_turn(conn, key="key-1")
    found = IdempotentTurn(turn=TURN, conversation=CHAT, request_hash="hash")
    assert turns.find_idempotent(conn, ACME, "key-1") == found
    assert turns.find_idempotent(conn, ACME, "key-2") is None
    assert turns.find_idempotent(conn, OTHER, "key-1") is None


def test_a_key_opens_one_turn(conn: Connection) -> None:
    open_turn(conn, key="key-1")
    with pytest.raises(VersionConflict, match="idempotency key"):
        open_turn(conn, SECOND, conversation=ConversationId("conv_2"), key="key-1")


def test_tenants_may_use_the_same_key_and_turns_without_one_are_many(conn: Connection) -> None:
    open_turn(conn, key="key-1")
    open_turn(conn, tenant=OTHER, key="key-1")
    open_turn(conn, SECOND, conversation=ConversationId("conv_2"))
    open_turn(conn, TurnId("resp_3"), conversation=ConversationId("conv_3"))


def test_of_racing_requests_with_one_key_one_opens_a_turn(engine: Engine) -> None:
    ready = Barrier(RACERS)

    def race(number: int) -> bool:
        with engine.connect() as conn:
            ready.wait()
            try:
                open_turn(
                    conn, TurnId(f"resp_{number}"), conversation=ConversationId(f"conv_{number}"), key="k"
                )
            except VersionConflict:
                return False
            conn.commit()
            return True

    with ThreadPoolExecutor(RACERS) as pool:
        assert sum(pool.map(race, range(RACERS))) == 1


def test_an_owner_renews_its_lease_and_nobody_else_does(conn: Connection) -> None:
    open_turn(conn, lease_s=0)
    assert not turns.renew_lease(conn, turn=TURN, owner="api-2", lease_s=60)
    assert [found.turn for found in turns.orphaned(conn, 10)] == [TURN]
    assert turns.renew_lease(conn, turn=TURN, owner="api-1", lease_s=60)
    assert turns.orphaned(conn, 10) == []


def test_a_closed_turn_has_no_lease_to_renew(conn: Connection) -> None:
    open_turn(conn)
    turns.close_turn(conn, tenant=ACME, turn=TURN)
    assert not turns.renew_lease(conn, turn=TURN, owner="api-1", lease_s=60)


def test_a_turn_is_orphaned_when_its_lease_has_run_out_by_the_database_clock(conn: Connection) -> None:
    open_turn(conn, lease_s=0.2)
    assert turns.orphaned(conn, 10) == []
    conn.execute(text("SELECT pg_sleep(0.25)"))
    assert turns.orphaned(conn, 10) == [OpenTurn(tenant=ACME, conversation=CHAT, turn=TURN)]


def test_a_closed_turn_is_never_orphaned(conn: Connection) -> None:
    open_turn(conn, lease_s=0)
    turns.close_turn(conn, tenant=ACME, turn=TURN)
    assert turns.orphaned(conn, 10) == []


def test_another_tenant_cannot_close_a_turn(conn: Connection) -> None:
    open_turn(conn)
    turns.close_turn(conn, tenant=OTHER, turn=TURN)
    assert turns.renew_lease(conn, turn=TURN, owner="api-1", lease_s=60)


def test_two_sweepers_never_see_the_same_orphan(engine: Engine) -> None:
    with engine.begin() as conn:
        for number in range(4):
            open_turn(
                conn, TurnId(f"resp_{number}"), conversation=ConversationId(f"conv_{number}"), lease_s=0
            )
    with engine.connect() as one, engine.connect() as other:
        first = {found.turn for found in turns.orphaned(one, 3)}
        second = {found.turn for found in turns.orphaned(other, 10)}
    assert len(first) == 3
    assert first | second == {f"resp_{number}" for number in range(4)}
    assert not first & second
