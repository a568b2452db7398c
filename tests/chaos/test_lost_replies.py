"""The reply to a COMMIT is lost, and what was committed is gone on with: the turn is answered at its first asking."""

from collections.abc import Sequence

from openai import OpenAI

from service.domain.events import AttemptFailed, TurnPinned
from service.store import event_store
from tests.chaos.client import Outcome
from tests.chaos.faults import Kind
from tests.chaos.rig import TENANT, Rig
from tests.chaos.sweep import break_once
from tests.chaos.test_sweep import ACCEPTED, replies_to_appends
from tests.chaos.wire import Message, Moment


def test_a_turn_whose_beginning_was_committed_unheard_is_answered_by_another_attempt(
    running: Rig, client: OpenAI
) -> None:
    def due(passed: Sequence[Message]) -> bool:
        replies = replies_to_appends(passed)
        return len(replies) == ACCEPTED and replies[-1] == passed[-1]

    run = break_once(running, client, Kind.CUT, Moment.BEFORE, due)
    assert run.at is not None
    assert run.violations == ()
    exchange = run.exchanges[1]
    assert exchange.told[0].outcome is Outcome.ANSWERED
    with running.database.connect() as conn:
        events = event_store.read(conn, tenant=TENANT, stream=exchange.ask.conversation)
    turn = exchange.told[0].response
    pins = [event for event in events if isinstance(event, TurnPinned) and event.turn == turn]
    assert [event.attempt for event in pins] == [1, 2]
    assert sum(isinstance(event, AttemptFailed) for event in events) == 1
