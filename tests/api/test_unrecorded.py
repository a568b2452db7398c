"""A turn whose end could not be recorded, good or bad: its client asks again, and is told how it ended."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from service.domain.events import ConversationId, TurnId
from service.store.event_store import load_conversation
from tests.api.stack import TENANT, Stack
from tests.flows.fleet import NOW
from tests.flows.orphans import fail_as_orphan

KEY = {"Idempotency-Key": "key-1"}


@contextmanager
def nothing_ends(stack: Stack) -> Iterator[None]:
    """As on a full disk: what would end a turn cannot be committed."""
    make = (
        "CREATE FUNCTION public.refuse_ends() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'no space left on device' USING ERRCODE = '53100'; END $$"
    )
    attach = (
        "CREATE CONSTRAINT TRIGGER refuse_ends AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW WHEN (NEW.type IN ('turn.completed', 'turn.failed')) EXECUTE FUNCTION public.refuse_ends()"
    )
    with stack.owner.begin() as conn:
        conn.execute(text(make))
        conn.execute(text(attach))
    yield
    with stack.owner.begin() as conn:
        conn.execute(text("DROP TRIGGER refuse_ends ON events"))


def test_it_is_to_be_sent_again_and_then_told_how_it_ended(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    with nothing_ends(stack):
        first = stack.post(input="hello", conversation=conversation, headers=KEY)
    assert first.status_code == 503
    assert first.json()["error"]["code"] == "storage_unavailable"
    assert (first.headers["retry-after"], first.headers["x-should-retry"]) == ("1", "true")
    turn = first.json()["error"]["response_id"]
    with stack.database.begin() as conn:
        fail_as_orphan(conn, TENANT, ConversationId(conversation), TurnId(turn), NOW)
    again = stack.post(input="hello", conversation=conversation, headers=KEY)
    assert (again.status_code, again.headers["x-should-retry"]) == (503, "false")
    assert again.json()["error"]["response_id"] == turn
    with stack.database.begin() as conn:
        state = load_conversation(conn, TENANT, ConversationId(conversation))
    assert list(state.turns) == [turn]
