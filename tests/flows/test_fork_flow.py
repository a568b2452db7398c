"""Forks made by the flows: nothing is copied, nothing of the parent moves, and what is erased there is erased here."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import OperationalError

from service import conversation_flow, edit_flow, turn_flow
from service.conversation_flow import Accepted
from service.domain import decide
from service.domain.errors import FenceLost, Gone, InvalidInput, NotFound
from service.domain.events import (
    ConversationErased,
    ConversationForked,
    ConversationId,
    OnUpgrade,
    PlanKind,
    Role,
    TenantId,
    TurnId,
)
from service.domain.head import head_of
from service.domain.limits import Limits
from service.domain.new_items import NewMessage
from service.edit_flow import Edit
from service.erasure_flow import erase_conversation
from service.store import ancestry, artifacts, event_store, heads, keys
from service.store.integrity import Walked, verify
from tests.flows.fleet import ACME, NOW, REQUEST, Running, accept, complete, completed, new_id, pin, published
from tests.flows.forks import answer, ask, fork, load, said, serving

AGAIN = NewMessage(role=Role.USER, text="again")


@pytest.fixture
def two_turns(conn: Connection) -> tuple[Running, Running]:
    """Of one conversation."""
    serving(conn)
    first = ask(conn, "one", metadata={})
    return first, ask(conn, "two", first.conversation)


def edit(conversation: ConversationId) -> Edit:
    return Edit(tenant=ACME, conversation=conversation, head=None, now=NOW)


def test_a_fork_begins_where_it_was_made_and_copies_nothing(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, second = two_turns
    made = fork(conn, first.conversation, first.turn)
    assert said(conn, made) == ["one", "to one"]
    assert said(conn, first.conversation) == ["one", "to one", "two", "to two"]
    own = event_store.read(conn, tenant=ACME, stream=made)
    assert [event.name for event in own] == ["conversation.created", "conversation.forked"]
    parent, child = load(conn, first.conversation), load(conn, made)
    assert child.items == parent.items[:2]
    assert child.window == (*map(ord, "one"), 7)
    assert child.last is not None
    assert child.last.turn == first.turn
    assert second.turn not in child.turns


def test_without_a_turn_it_is_forked_after_its_last_answer_also_while_it_answers(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, second = two_turns
    running = accept(conn, conversation=first.conversation)
    made = fork(conn, first.conversation)
    state = load(conn, made)
    assert state.fork is not None
    assert (state.fork.turn, state.open_turn) == (second.turn, None)
    ask(conn, "three", made)
    assert load(conn, first.conversation).open_turn is not None
    answer(conn, Running(conversation=first.conversation, turn=running.turn), "hello")
    assert said(conn, made)[-2:] == ["three", "to three"]
    assert said(conn, first.conversation)[-2:] == ["hello", "to hello"]


def test_a_fork_of_a_fork_folds_all_three_histories(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    once = fork(conn, first.conversation, first.turn)
    branch = ask(conn, "b", once)
    twice = fork(conn, once, branch.turn)
    ask(conn, "c", twice)
    assert said(conn, twice) == ["one", "to one", "b", "to b", "c", "to c"]
    assert load(conn, twice).window == (*map(ord, "one"), 7, ord("b"), 7, ord("c"), 7)
    assert [one.conversation for one in load(conn, twice).ancestors] == [once, first.conversation]


def test_an_inherited_turn_is_forked_from_where_it_was_answered(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, second = two_turns
    once = fork(conn, first.conversation, second.turn)
    beside = fork(conn, once, first.turn)
    state = load(conn, beside)
    assert state.fork is not None
    assert (state.fork.parent, len(state.ancestors)) == (first.conversation, 1)


def test_a_fork_is_like_its_parent_but_for_what_its_client_says(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    edit_flow.update_conversation(conn, edit(first.conversation), {"user": "u-17"})
    alike = load(conn, fork(conn, first.conversation, first.turn))
    assert (alike.alias, alike.metadata) == ("production", {"user": "u-17"})
    changed = load(
        conn,
        fork(
            conn,
            first.conversation,
            first.turn,
            metadata={"branch": "b"},
            on_upgrade=OnUpgrade.STAY,
            messages=[AGAIN],
        ),
    )
    assert (changed.metadata, changed.on_upgrade) == ({"branch": "b"}, OnUpgrade.STAY)
    assert changed.items[-1].text == "again"


def test_an_earlier_response_is_continued_on_a_fork(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, second = two_turns
    before = load(conn, first.conversation)
    accepted = accept(conn, previous=first.turn, messages=(AGAIN,))
    assert accepted.conversation != first.conversation
    assert load(conn, first.conversation) == before
    assert said(conn, accepted.conversation) == ["one", "to one", "again"]
    assert accept(conn, previous=second.turn).conversation == first.conversation


def test_the_last_response_is_continued_on_a_fork_while_another_answer_to_it_is_made(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, second = two_turns
    one = accept(conn, previous=second.turn)
    other = accept(conn, previous=second.turn)
    assert one.conversation == first.conversation
    assert other.conversation != first.conversation
    assert said(conn, other.conversation)[:-1] == said(conn, first.conversation)[:-1]


def test_a_repeated_request_finds_the_fork_that_it_made(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    made = accept(conn, previous=first.turn, request_hash="of this body")
    again = accept(conn, previous=first.turn, request_hash="of this body", repeated=True)
    assert again == Accepted(conversation=made.conversation, turn=made.turn, fresh=False)
    other = accept(conn, previous=first.turn, request_hash="of another", repeated=True)
    assert other.fresh
    assert other.conversation != made.conversation


def test_a_response_without_an_answer_cannot_be_continued(conn: Connection) -> None:
    serving(conn)
    open_turn = accept(conn)
    for tried in (lambda: accept(conn, previous=open_turn.turn), lambda: fork(conn, open_turn.conversation)):
        with pytest.raises(InvalidInput) as refused:
            tried()
        assert refused.value.code in {"response_not_completed", "nothing_to_fork"}


def test_what_is_another_tenants_or_nobodys_is_not_found(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    keys.create_tenant(conn, TenantId("other"))
    with pytest.raises(NotFound):
        fork(conn, first.conversation, first.turn, tenant=TenantId("other"))
    with pytest.raises(NotFound):
        fork(conn, first.conversation, TurnId("resp_x"))
    elsewhere = ask(conn, "elsewhere")
    with pytest.raises(NotFound):
        fork(conn, first.conversation, elsewhere.turn)


def test_limits_hold_for_forks_and_count_what_they_inherit(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    with pytest.raises(InvalidInput, match="'conversations' is 1"):
        fork(conn, first.conversation, first.turn, limits=Limits(conversations=1))
    with pytest.raises(InvalidInput, match="'conversations' is 1"):
        accept(conn, previous=first.turn, limits=Limits(conversations=1))
    with pytest.raises(InvalidInput, match="'items' is 2"):
        fork(conn, first.conversation, first.turn, messages=[AGAIN], limits=Limits(items=2))
    with pytest.raises(InvalidInput, match="'tokens' is 3"):
        accept(conn, previous=first.turn, limits=Limits(tokens=3))


def test_forks_of_forks_end_with_a_way_out(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "MAX_FORK_DEPTH", 2)
    serving(conn)
    last = ask(conn, "one")
    for number in range(2):
        last = ask(conn, str(number), fork(conn, last.conversation, last.turn))
    with pytest.raises(InvalidInput, match="Fork one of those it came from"):
        fork(conn, last.conversation, last.turn)


def test_what_was_deleted_of_the_parent_before_stays_deleted_and_what_is_later_stays(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    before = fork(conn, first.conversation, first.turn)
    item = load(conn, first.conversation).items[0].id
    edit_flow.delete_item(conn, edit(first.conversation), item)
    after = fork(conn, first.conversation, first.turn)
    assert said(conn, before) == ["one", "to one"]
    assert said(conn, after) == ["to one"]
    assert load(conn, after).window == ()


def test_deleting_the_parent_leaves_its_forks(conn: Connection, two_turns: tuple[Running, Running]) -> None:
    first, _ = two_turns
    made = fork(conn, first.conversation, first.turn)
    edit_flow.delete_conversation(conn, edit(first.conversation))
    ask(conn, "on", made)
    assert said(conn, made) == ["one", "to one", "on", "to on"]
    with pytest.raises(NotFound):
        fork(conn, first.conversation, first.turn)
    assert said(conn, fork(conn, made, first.turn)) == ["one", "to one"]


def test_the_kv_of_what_it_inherits_is_offered_to_a_fork(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    made = fork(conn, first.conversation, first.turn)
    running = Running(conversation=made, turn=accept(conn, conversation=made).turn)
    engine = pin(conn, running).engine
    turn_flow.fail_turn(
        conn, tenant=ACME, conversation=made, turn=running.turn, code="x", message="y", now=NOW
    )
    for handle, tokens in (("kv_" + "1" * 8, 4), ("kv_" + "2" * 8, 8)):
        kv = published(engine, handle, tokens)
        artifacts.record(conn, tenant=ACME, conversation=first.conversation, published=kv, now=NOW)
    again = accept(conn, conversation=made)
    planned = pin(conn, Running(conversation=made, turn=again.turn)).pinned
    assert (planned.plan, planned.offer) == (PlanKind.REUSE, "kv_" + "2" * 8)


def test_what_the_parent_computed_after_the_fork_is_no_better_than_the_forks_own(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    made = fork(conn, first.conversation, first.turn)
    running = Running(conversation=made, turn=accept(conn, conversation=made).turn)
    engine = pin(conn, running).engine
    state = load(conn, made)
    theirs, own = published(engine, "kv_" + "1" * 8, 90), published(engine, "kv_" + "2" * 8, 5)
    artifacts.record(conn, tenant=ACME, conversation=first.conversation, published=theirs, now=NOW)
    artifacts.record(conn, tenant=ACME, conversation=made, published=own, now=NOW)
    found = artifacts.of_conversation(conn, ACME, made, state.ancestors)
    assert [(one.artifact, one.tokens) for one in found] == [(own.artifact, 5), (theirs.artifact, 4)]
    assert [one.artifact for one in artifacts.of_conversation(conn, ACME, first.conversation)] == [
        theirs.artifact
    ]


def erase(conn: Connection, conversation: ConversationId) -> tuple[ConversationId, ...]:
    erased = erase_conversation(
        conn, tenant=ACME, conversation=conversation, by="key_op", reason="asked for", now=NOW
    )
    return erased.forks


def test_erasing_takes_the_forks_too_and_all_their_chains_verify(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    once = fork(conn, first.conversation, first.turn)
    branch = ask(conn, "the branch", once)
    running = Running(conversation=once, turn=accept(conn, conversation=once).turn)
    pinned = pin(conn, running)
    twice = fork(conn, once, branch.turn)
    kept = ask(conn, "kept")
    assert erase(conn, first.conversation) == (once, twice)
    left = conn.execute(text("SELECT DISTINCT stream FROM event_contents")).scalars().all()
    assert left == [kept.conversation]
    for gone in (first.conversation, once, twice):
        with pytest.raises(Gone, match=gone):
            conversation_flow.find_conversation(conn, ACME, gone)
    with pytest.raises(FenceLost):
        complete(conn, running, completed(pinned))
    with pytest.raises(Gone):
        fork(conn, first.conversation, first.turn)
    assert list(verify(conn, Walked())) == []
    reasons = conn.execute(text("SELECT conversation_id, reason FROM audit.erasures ORDER BY position"))
    assert [tuple(row) for row in reasons] == [
        (first.conversation, "asked for"),
        (once, "with what it was forked from: asked for"),
        (twice, "with what it was forked from: asked for"),
    ]
    assert erase(conn, first.conversation) == (once, twice), "again, and nothing changes"


def test_erasing_a_fork_leaves_its_parent(conn: Connection, two_turns: tuple[Running, Running]) -> None:
    first, _ = two_turns
    made = fork(conn, first.conversation, first.turn)
    ask(conn, "on", made)
    erased = erase_conversation(conn, tenant=ACME, conversation=made, by="x", reason="", now=NOW)
    assert (erased.parent, erased.forks) == (first.conversation, ())
    assert said(conn, first.conversation) == ["one", "to one", "two", "to two"]
    assert list(verify(conn, Walked())) == []


def test_a_fork_without_a_tombstone_of_its_own_is_gone_with_its_parent(
    conn: Connection, two_turns: tuple[Running, Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a version of this service that knows no forks would leave it."""
    first, _ = two_turns
    made = fork(conn, first.conversation, first.turn)
    ask(conn, "on", made)
    with monkeypatch.context() as patch:
        patch.setattr(ancestry, "children", lambda *_: [])
        erase(conn, first.conversation)
    for tried in (
        lambda: conversation_flow.find_conversation(conn, ACME, made),
        lambda: accept(conn, conversation=made),
        lambda: fork(conn, made),
    ):
        with pytest.raises(Gone, match=made):
            tried()
    assert erase(conn, first.conversation) == (made,)
    assert conn.execute(text("SELECT count(*) FROM event_contents")).scalar_one() == 0


def test_the_forks_chain_commits_to_the_history_that_it_was_made_of(
    owner_conn: Connection,
) -> None:
    conn = owner_conn
    serving(conn)
    first = ask(conn, "one")
    made = fork(conn, first.conversation, first.turn)
    forked = event_store.read(conn, tenant=ACME, stream=made)[1]
    assert isinstance(forked, ConversationForked)
    heads = {"stream": first.conversation, "version": forked.parent_version}
    chain = conn.execute(
        text("SELECT chain FROM events WHERE stream = :stream AND stream_version = :version"), heads
    ).scalar_one()
    assert forked.parent_chain == chain.hex()
    assert list(verify(conn, Walked())) == []
    conn.execute(text("ALTER TABLE events DISABLE TRIGGER append_only"))
    conn.execute(text("DELETE FROM events WHERE stream = :stream AND stream_version = :version"), heads)
    [cut, *_] = verify(conn, Walked())
    assert str(cut.stream) == made
    assert "forked from a history" in cut.reason
    view = conn.execute(text("SELECT parent_id, after_turn_id, ancestors, parent_intact FROM audit.forks"))
    assert [tuple(row) for row in view] == [(first.conversation, first.turn, [first.conversation], False)]


@pytest.mark.parametrize("first", ["forks", "erases"])
def test_who_forks_and_who_erases_wait_for_each_other(engine: Engine, first: str) -> None:
    """Else a fork could be made that the erasure does not see, and keep what was said in it."""
    with engine.begin() as conn:
        serving(conn)
        parent = ask(conn, "one")

    def forks(conn: Connection) -> None:
        fork(conn, parent.conversation, parent.turn, messages=[AGAIN])

    def erases(conn: Connection) -> None:
        erase(conn, parent.conversation)

    works = {"forks": forks, "erases": erases}
    with engine.begin() as conn, engine.connect() as other:
        works.pop(first)(conn)
        [waits] = works.values()
        other.execute(text("SET lock_timeout = '50ms'"))
        with pytest.raises(OperationalError, match="lock timeout"):
            waits(other)


def test_many_may_fork_at_one_turn_at_once(engine: Engine) -> None:
    with engine.begin() as conn:
        serving(conn)
        parent = ask(conn, "one")

    def work(_: int) -> ConversationId:
        with engine.begin() as conn:
            return fork(conn, parent.conversation, parent.turn)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(work, range(8)))
    with engine.begin() as conn:
        assert len(set(made)) == 8
        assert set(ancestry.children(conn, ACME, parent.conversation)) == set(made)
        assert all(said(conn, one) == ["one", "to one"] for one in made)


def test_a_preview_on_an_earlier_response_counts_its_history_and_records_nothing(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    asked = replace(REQUEST, previous=first.turn, messages=(AGAIN,))
    state, _ = conversation_flow.preview_turn(conn, asked, new_id)
    assert [item.text for item in state.items] == ["one", "to one", "again"]
    assert ancestry.children(conn, ACME, first.conversation) == []


def test_a_fork_is_rebuilt_from_the_window_that_it_inherits_and_its_own(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    first, _ = two_turns
    made = fork(conn, first.conversation, first.turn)
    assert heads.load_window(conn, ACME, made) == (*map(ord, "one"), 7)
    ask(conn, "b", made)
    twice = fork(conn, made)
    assert (
        heads.load_window(conn, ACME, twice) == load(conn, twice).window == (*map(ord, "one"), 7, ord("b"), 7)
    )


def test_a_head_of_a_fork_knows_what_it_deleted_before_its_last_answer_and_what_was_erased(
    conn: Connection, two_turns: tuple[Running, Running]
) -> None:
    """Its few newest events tell neither."""
    first, _ = two_turns
    made = fork(conn, first.conversation, first.turn)
    edit_flow.delete_item(conn, edit(made), load(conn, made).items[0].id)
    running = Running(conversation=made, turn=accept(conn, conversation=made).turn)
    complete(conn, running, completed(pin(conn, running)))
    assert heads.load_head(conn, ACME, made).ancestors[0].tokens == 0
    twice = fork(conn, made)
    assert [one.tokens for one in heads.load_head(conn, ACME, twice).ancestors][1:] == [0]
    beside = fork(conn, first.conversation, first.turn)
    event_store.append(
        conn,
        tenant=ACME,
        stream=first.conversation,
        expected_version=load(conn, first.conversation).version,
        events=[ConversationErased(by="key", reason="")],
        now=NOW,
    )
    event_store.erase_contents(conn, tenant=ACME, stream=first.conversation)
    assert heads.load_head(conn, ACME, beside) == head_of(load(conn, beside))
    assert heads.load_head(conn, ACME, beside).erased is not None
    assert heads.load_head_as_of(conn, ACME, first.conversation, 4).erased is not None
