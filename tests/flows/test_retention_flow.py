"""Retention: what is older than a tenant's policy goes, and what somebody still uses, or a fork still needs, does not."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from service import edit_flow, retention_flow
from service.domain.errors import NotFound
from service.domain.events import ConversationErased, ConversationId, Role, TenantId
from service.domain.new_items import NewMessage
from service.edit_flow import Edit
from service.retention_flow import Outcome
from service.store import event_store, retention
from service.store.retention import Overdue, Retention
from tests.flows.fleet import ACME, NOW, accept, new_id
from tests.flows.forks import ask, fork, load, said, serving

AFTER_DAYS = 30
LATE = NOW + timedelta(days=AFTER_DAYS, seconds=1)
"""When what was last said at NOW is too old."""


@pytest.fixture
def rule(conn: Connection) -> Retention:
    serving(conn)
    retention.set_retention(conn, ACME, after_days=AFTER_DAYS, by="key_op", now=NOW)
    [found] = retention.list_retention(conn, ACME)
    return found


def overdue(conn: Connection, rule: Retention, now: datetime = LATE) -> list[Overdue]:
    return [*retention_flow.next_overdue(conn, rule, now=now, after=None, limit=100)]


def names(conn: Connection, rule: Retention, now: datetime = LATE) -> list[ConversationId]:
    return [found.conversation for found in overdue(conn, rule, now)]


def run(conn: Connection, rule: Retention, now: datetime = LATE) -> dict[ConversationId, Outcome]:
    return {
        found.conversation: retention_flow.erase_overdue(conn, rule, found, now)
        for found in overdue(conn, rule, now)
    }


def test_a_conversation_is_too_old_when_its_last_turn_is(conn: Connection, rule: Retention) -> None:
    chat = ask(conn, "one").conversation
    assert overdue(conn, rule, LATE - timedelta(seconds=2)) == []
    assert overdue(conn, rule) == [Overdue(conversation=chat, last_at=NOW)]


def test_renaming_or_deleting_it_does_not_make_it_younger(conn: Connection, rule: Retention) -> None:
    chat = ask(conn, "one").conversation
    late = Edit(tenant=ACME, conversation=chat, head=None, now=LATE)
    edit_flow.update_conversation(conn, late, {"topic": "tea"})
    edit_flow.delete_conversation(conn, late)
    assert names(conn, rule) == [chat]


def test_what_is_erased_loses_its_words_and_its_tombstone_names_the_policy(
    conn: Connection, rule: Retention
) -> None:
    chat = ask(conn, "one").conversation
    outcome = run(conn, rule)[chat]
    assert outcome.kept is None
    tombstone = event_store.read(conn, tenant=ACME, stream=chat)[-1]
    assert tombstone == ConversationErased(
        by="retention", reason="retention: no turn for 30 days; set by key_op on 2026-01-02"
    )
    assert conn.execute(text("SELECT count(*) FROM event_contents")).scalar_one() == 0
    told = conn.execute(text("SELECT erased_by, contents_left FROM audit.erasures")).one()
    assert tuple(told) == ("retention", 0)
    assert overdue(conn, rule) == []


def test_an_open_turn_keeps_it(conn: Connection, rule: Retention) -> None:
    chat = ask(conn, "one").conversation
    accept(conn, conversation=chat)
    assert run(conn, rule)[chat].kept == f"a turn of {chat} is open"
    assert load(conn, chat).erased is None


def test_what_was_gone_on_with_since_it_was_found_stays(conn: Connection, rule: Retention) -> None:
    chat = ask(conn, "one").conversation
    [found] = overdue(conn, rule)
    edit = Edit(tenant=ACME, conversation=chat, head=None, now=LATE)
    edit_flow.add_items(conn, edit, [NewMessage(role=Role.USER, text="still here")], new_id)
    outcome = retention_flow.erase_overdue(conn, rule, found, LATE)
    assert outcome.kept is not None
    assert "gone on with" in outcome.kept
    assert retention.last_at(conn, ACME, chat) == LATE


def test_a_younger_fork_keeps_its_parent_and_an_old_one_goes_with_it(
    conn: Connection, rule: Retention
) -> None:
    parent = ask(conn, "one")
    child = fork(conn, parent.conversation, parent.turn)
    grandchild = fork(conn, child, now=NOW + timedelta(days=9))
    kept = run(conn, rule)[parent.conversation].kept
    assert kept is not None
    assert kept.startswith("its fork stays: ")
    assert grandchild in kept
    assert said(conn, grandchild) == ["one", "to one"]
    later = LATE + timedelta(days=10)
    outcome = run(conn, rule, later)[parent.conversation]
    assert outcome.forks == (child, grandchild)
    assert overdue(conn, rule, later) == []


def test_an_erased_fork_keeps_nothing(conn: Connection, rule: Retention) -> None:
    parent = ask(conn, "one")
    child = fork(conn, parent.conversation, parent.turn)
    [found] = [one for one in overdue(conn, rule) if one.conversation == child]
    retention_flow.erase_overdue(conn, rule, found, LATE)
    assert said(conn, parent.conversation) == ["one", "to one"]
    assert run(conn, rule)[parent.conversation].kept is None


def test_a_dry_run_says_the_same_and_changes_nothing(conn: Connection, rule: Retention) -> None:
    free, busy = ask(conn, "one").conversation, ask(conn, "two").conversation
    accept(conn, conversation=busy)
    before = conn.execute(text("SELECT count(*) FROM events")).scalar_one()
    judged = {
        found.conversation: retention_flow.judge(conn, rule, found, LATE) for found in overdue(conn, rule)
    }
    assert (judged[free].kept, judged[busy].kept) == (None, f"a turn of {busy} is open")
    assert conn.execute(text("SELECT count(*) FROM events")).scalar_one() == before


def test_pages_follow_each_other_without_loss(conn: Connection, rule: Retention) -> None:
    made = {ask(conn, str(number)).conversation for number in range(5)}
    found: list[ConversationId] = []
    while page := retention_flow.next_overdue(
        conn, rule, now=LATE, after=found[-1] if found else None, limit=2
    ):
        found += [one.conversation for one in page]
    assert (set(found), len(found)) == (made, 5)


def test_a_policy_is_a_known_tenants_and_can_be_taken_back(conn: Connection, rule: Retention) -> None:
    retention.set_retention(conn, ACME, after_days=7, by="key_2", now=LATE)
    [changed] = retention.list_retention(conn)
    assert (changed.after_days, changed.set_by, changed.set_at) == (7, "key_2", LATE)
    shown = conn.execute(text("SELECT erased_after_days, retention_set_by FROM audit.tenants")).one()
    assert tuple(shown) == (7, "key_2")
    assert retention.clear_retention(conn, ACME)
    assert not retention.clear_retention(conn, ACME)
    assert retention.list_retention(conn) == []
    with pytest.raises(NotFound), conn.begin_nested():
        retention.set_retention(conn, TenantId("nobody"), after_days=7, by="x", now=NOW)
