"""Accepting turns: one order, one open turn, one turn for each key, whoever races."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Connection, Engine, text

from service.conversation_flow import Accepted, find_conversation, find_response
from service.domain.errors import ConversationLocked, EverturnError, InvalidInput, NotFound, VersionConflict
from service.domain.events import (
    ConversationId,
    OnUpgrade,
    PolicyLevel,
    Role,
    TenantId,
    TurnStarted,
)
from service.domain.new_items import NewMessage
from service.store import keys
from tests.api.stack import eventually
from tests.flows.fleet import (
    ACME,
    NOW,
    Running,
    accept,
    add_engine,
    answered,
    complete,
    completed,
    events_of,
    move_alias,
    pin,
)

WRITERS = 20


def at_once(engine: Engine, work: Callable[[], Accepted]) -> list[Accepted | EverturnError]:
    def one(_: int) -> Accepted | EverturnError:
        try:
            return work()
        except EverturnError as error:
            return error

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(one, range(WRITERS)))


def test_c1_of_many_writers_one_opens_the_turn_and_the_others_are_told(engine: Engine) -> None:
    with engine.begin() as conn:
        running = answered(conn)
        complete(conn, running, completed(pin(conn, running)))

    def work() -> Accepted:
        with engine.begin() as conn:
            return accept(conn, conversation=running.conversation)

    results = at_once(engine, work)
    assert sum(isinstance(r, Accepted) for r in results) == 1
    assert sum(isinstance(r, ConversationLocked) for r in results) == WRITERS - 1


def test_of_many_with_one_key_all_get_the_same_turn(engine: Engine) -> None:
    with engine.begin() as conn:
        answered(conn)

    def work() -> Accepted:
        while True:
            try:
                with engine.begin() as conn:
                    return accept(conn, idempotency_key="key")
            except VersionConflict:
                continue

    results = [r for r in at_once(engine, work) if isinstance(r, Accepted)]
    assert len(results) == WRITERS
    assert len({r.turn for r in results}) == 1
    assert [r.fresh for r in results].count(True) == 1


def test_a_request_that_waits_for_its_twin_is_given_its_turn(engine: Engine) -> None:
    with engine.begin() as conn:
        running = answered(conn)
        complete(conn, running, completed(pin(conn, running)))
        head = len(events_of(conn, running))

    def ask(conn: Connection) -> Accepted:
        return accept(conn, conversation=running.conversation, idempotency_key="key", head=head)

    def in_a_transaction() -> Accepted:
        with engine.begin() as conn:
            return ask(conn)

    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as conn:
            first = ask(conn)
            asked = pool.submit(in_a_transaction)
            eventually(lambda: waits(engine))
        second = asked.result()
    assert (second.turn, second.fresh) == (first.turn, False)


def waits(engine: Engine) -> bool:
    """Somebody, for a lock of the store's own in this database."""
    query = """
        SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
        WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()
    """
    with engine.connect() as conn:
        return bool(conn.execute(text(query)).scalar_one())


def test_a_key_with_another_request_is_refused(engine: Engine) -> None:
    with engine.begin() as conn:
        answered(conn)
        accept(conn, idempotency_key="key")
    with engine.begin() as conn, pytest.raises(InvalidInput) as refused:
        accept(conn, idempotency_key="key", request_hash="other")
    assert refused.value.code == "idempotency_key_reused"


def test_a_refused_turn_leaves_nothing(engine: Engine) -> None:
    with engine.begin() as conn:
        running = answered(conn)
        before = events_of(conn, running)
    with pytest.raises(ConversationLocked), engine.begin() as conn:
        accept(conn, conversation=running.conversation, idempotency_key="key")
    with engine.begin() as conn:
        assert events_of(conn, running) == before
        complete(conn, running, completed(pin(conn, running)))
        assert accept(conn, conversation=running.conversation, idempotency_key="key").fresh


@pytest.mark.parametrize(
    ("turn", "tenant", "expected", "level"),
    [
        (OnUpgrade.STAY, OnUpgrade.REPLAY, OnUpgrade.STAY, PolicyLevel.TURN),
        (None, OnUpgrade.STAY_STRICT, OnUpgrade.STAY_STRICT, PolicyLevel.TENANT),
        (None, None, OnUpgrade.REPLAY, PolicyLevel.DEFAULT),
    ],
)
def test_the_policy_and_the_level_that_chose_it_are_recorded(
    engine: Engine, turn: OnUpgrade | None, tenant: OnUpgrade | None, expected: OnUpgrade, level: PolicyLevel
) -> None:
    with engine.begin() as conn:
        answered(conn)
        accepted = accept(conn, on_upgrade=turn, tenant_policy=tenant)
        started = events_of(conn, Running(conversation=accepted.conversation, turn=accepted.turn))[-1]
    assert isinstance(started, TurnStarted)
    assert (started.on_upgrade, started.policy_level) == (expected, level)


def test_another_tenant_finds_nothing(engine: Engine) -> None:
    other = TenantId("other")
    with engine.begin() as conn:
        running = answered(conn)
        keys.create_tenant(conn, other)
    with engine.begin() as conn:
        for look in (
            lambda: find_conversation(conn, other, running.conversation),
            lambda: find_response(conn, other, running.turn),
            lambda: accept(conn, tenant=other, conversation=running.conversation),
            lambda: accept(conn, tenant=other, previous=running.turn),
        ):
            with pytest.raises(NotFound):
                look()


def test_an_unknown_alias_names_those_that_there_are(engine: Engine) -> None:
    with engine.begin() as conn:
        keys.create_tenant(conn, ACME)
        move_alias(conn, add_engine(conn, "a", "boot_a"))
    with engine.begin() as conn, pytest.raises(InvalidInput, match="'production'") as unknown:
        accept(conn, alias="canary")
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")


def test_a_response_knows_the_answer_before_it(engine: Engine) -> None:
    with engine.begin() as conn:
        running = answered(conn)
        complete(conn, running, completed(pin(conn, running)))
        stored = find_response(conn, ACME, running.turn)
        turns = find_conversation(conn, ACME, running.conversation).state.turns
        first = find_response(conn, ACME, next(iter(turns)))
    assert stored.previous is not None
    assert stored.previous.turn == first.turn.id
    assert first.previous is None
    assert (stored.created_at, stored.completed_at) == (NOW, NOW)


def test_instructions_are_the_turns_and_no_item(engine: Engine) -> None:
    with engine.begin() as conn:
        keys.create_tenant(conn, ACME)
        move_alias(conn, add_engine(conn, "a", "boot_a"))
        accepted = accept(conn, instructions="be brief", messages=(NewMessage(role=Role.USER, text="x"),))
        state = find_conversation(conn, ACME, ConversationId(accepted.conversation)).state
    assert [(i.role, i.text) for i in state.items] == [(Role.USER, "x")]
    turn = state.turns[accepted.turn]
    assert turn.asked is not None
    assert (turn.started.instructions, turn.asked.instructions) == (None, "be brief")
