"""The flows against a model of them: turns, retries, orphans, deletions and erasures in any order, some rolled back."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, Engine, func, select

from service import conversation_flow, edit_flow, turn_flow
from service.conversation_flow import Accepted
from service.domain.artifact import BootId
from service.domain.errors import (
    ConversationLocked,
    EverturnError,
    FenceLost,
    Gone,
    InvalidInput,
    NotFound,
)
from service.domain.events import AttemptFailed, ConversationId, Role, TenantId, TurnCompleted, TurnId
from service.domain.new_items import NewMessage
from service.domain.turn import TurnState
from service.erasure_flow import erase_conversation
from service.store import event_store, fleet, keys
from service.store.feed import Cursor, read_page
from service.store.integrity import Walked, verify
from service.store.tables import turns
from service.turn_flow import Pinned
from service.turn_request import TurnRequest
from tests.flows.fleet import NOW, REQUEST, add_engine, completed, move_alias, new_id
from tests.flows.orphans import fail_as_orphan
from tests.store.horizon import wait_for_others
from tests.store.strategies import TEXT

PICKS = st.integers(min_value=0, max_value=99)
KEPT = st.sampled_from([True, True, True, False])
KEYS = st.sampled_from([None, "key-1", "key-2", "key-3"])
LATE = st.sampled_from([0, 0, 0, 1])
LEASE_S = 86_400.0
ENDED = (TurnState.COMPLETED, TurnState.FAILED)

Transaction = Callable[[Connection], Any]


@dataclass(slots=True, kw_only=True)
class ModelTurn:
    id: TurnId
    text: str
    key: str | None
    request: TurnRequest
    state: TurnState = TurnState.STARTED
    attempt: int = 0
    pinned: Pinned | None = None
    """The last that was."""
    answer: str = ""


@dataclass(slots=True, kw_only=True)
class ModelConversation:
    id: ConversationId
    turns: list[ModelTurn] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["conversation.created"])
    deleted: bool = False
    erased: bool = False

    @property
    def open(self) -> ModelTurn | None:
        return next((turn for turn in self.turns if turn.state not in ENDED), None)

    @property
    def prompt(self) -> list[str]:
        """What the next one is made of."""
        if self.erased:
            return []
        kept = [turn for turn in self.turns if turn.state is not TurnState.FAILED]
        return [
            text
            for turn in kept
            for text in (turn.text, *([turn.answer] if turn.state is TurnState.COMPLETED else []))
        ]

    def refusal(self) -> type[EverturnError] | None:
        """Of a new turn, or of an edit."""
        if self.deleted:
            return NotFound
        if self.erased:
            return Gone
        return ConversationLocked if self.open else None


class Turns(RuleBasedStateMachine):
    engine: ClassVar[Engine]

    def __init__(self) -> None:
        super().__init__()
        self.tenant = TenantId(f"t{uuid4().hex}")
        self.conversations: list[ModelConversation] = []
        self.fresh: list[tuple[str, int]] = []
        """Committed since the feed was last read."""
        with self.engine.begin() as conn:
            keys.create_tenant(conn, self.tenant)
            wait_for_others(conn)
            for page in iter(lambda: read_page(conn, after=self._last(), limit=1000), ()):
                self.cursor = page[-1].cursor

    @rule(text=TEXT, key=KEYS, kept=KEPT)
    def begin(self, text: str, key: str | None, *, kept: bool) -> None:
        self._ask(None, text, key, kept=kept)

    @precondition(lambda self: self.conversations)
    @rule(pick=PICKS, text=TEXT, key=KEYS, kept=KEPT)
    def ask(self, pick: int, text: str, key: str | None, *, kept: bool) -> None:
        self._ask(self._pick(pick), text, key, kept=kept)

    @precondition(lambda self: self._keyed())
    @rule(pick=PICKS)
    def ask_again(self, pick: int) -> None:
        conversation, turn = self._keyed()[pick % len(self._keyed())]
        again = self._do(lambda conn: self._accept(conn, turn.request), kept=True)
        assert again == Accepted(conversation=conversation.id, turn=turn.id, fresh=False)

    @precondition(lambda self: self.conversations)
    @rule(pick=PICKS, kept=KEPT)
    def pin(self, pick: int, *, kept: bool) -> None:
        conversation = self._pick(pick)
        turn = conversation.turns[-1]
        planned = self._do(lambda conn: self._plan(conn, conversation, turn), kept=kept)
        if turn.state is not TurnState.STARTED:
            assert isinstance(planned, FenceLost)
            return
        assert isinstance(planned, Pinned)
        assert planned.pinned.attempt == turn.attempt + 1
        if kept:
            turn.state, turn.attempt, turn.pinned = TurnState.PINNED, turn.attempt + 1, planned
            self._appended(conversation, "turn.pinned")

    @precondition(lambda self: self.conversations)
    @rule(pick=PICKS, late=LATE, kept=KEPT)
    def lose_the_attempt(self, pick: int, late: int, *, kept: bool) -> None:
        conversation = self._pick(pick)
        turn = conversation.turns[-1]
        failed = AttemptFailed(turn=turn.id, attempt=turn.attempt - late, reason="gone")
        outcome = self._do(lambda conn: self._fail_attempt(conn, conversation, failed), kept=kept)
        if turn.state is not TurnState.PINNED or late:
            assert isinstance(outcome, FenceLost)
        elif kept:
            turn.state = TurnState.STARTED
            self._appended(conversation, "attempt.failed")

    @precondition(lambda self: self.conversations)
    @rule(pick=PICKS, late=LATE, answer=TEXT, kept=KEPT)
    def answer(self, pick: int, late: int, answer: str, *, kept: bool) -> None:
        conversation = self._pick(pick)
        turn = conversation.turns[-1]
        if turn.pinned is None:
            return
        event = completed(turn.pinned, attempt=turn.attempt - late, text=answer)
        outcome = self._do(lambda conn: self._complete(conn, conversation, event), kept=kept)
        if turn.state is not TurnState.PINNED or late:
            assert isinstance(outcome, FenceLost)
        elif kept:
            turn.state, turn.answer = TurnState.COMPLETED, answer
            self._appended(conversation, "turn.completed")

    @precondition(lambda self: self.conversations)
    @rule(pick=PICKS, orphaned=st.booleans(), kept=KEPT)
    def end_without_an_answer(self, pick: int, *, orphaned: bool, kept: bool) -> None:
        conversation = self._pick(pick)
        turn = conversation.turns[-1]
        self._do(lambda conn: self._fail(conn, conversation, turn, orphaned=orphaned), kept=kept)
        if kept:
            self._failed(conversation, turn)

    @precondition(lambda self: self.conversations)
    @rule(pick=PICKS, kept=KEPT)
    def delete(self, pick: int, *, kept: bool) -> None:
        conversation = self._pick(pick)
        edit = edit_flow.Edit(tenant=self.tenant, conversation=conversation.id, head=None, now=NOW)
        outcome = self._do(lambda conn: edit_flow.delete_conversation(conn, edit), kept=kept)
        if (refusal := conversation.refusal()) is not None:
            assert isinstance(outcome, refusal)
        elif kept:
            conversation.deleted = True
            self._appended(conversation, "conversation.deleted")

    @precondition(lambda self: self.conversations)
    @rule(pick=PICKS, kept=KEPT)
    def erase(self, pick: int, *, kept: bool) -> None:
        conversation = self._pick(pick)
        erasure = self._do(lambda conn: self._erase(conn, conversation), kept=kept)
        assert erasure.fresh is not conversation.erased
        if kept and erasure.fresh:
            self._failed(conversation, conversation.turns[-1])
            conversation.erased = True
            self._appended(conversation, "conversation.erased")
            for turn in conversation.turns:
                turn.key, turn.text, turn.answer = None, "", ""

    @invariant()
    def every_conversation_is_as_its_model(self) -> None:
        with self.engine.connect() as conn:
            for model in self.conversations:
                history = event_store.read(conn, tenant=self.tenant, stream=model.id)
                assert [event.name for event in history] == model.names
                state = event_store.load_conversation(conn, self.tenant, model.id)
                assert [item.text for item in state.items] == model.prompt
                assert [(t.id, t.state, t.attempt) for t in state.turns.values()] == [
                    (t.id, t.state, t.attempt) for t in model.turns
                ]
                assert (state.deleted, state.erased is not None) == (model.deleted, model.erased)

    @invariant()
    def the_rows_of_open_turns_are_those_of_the_events(self) -> None:
        query = select(func.count()).where(turns.c.tenant_id == self.tenant, ~turns.c.closed)
        with self.engine.connect() as conn:
            assert conn.execute(query).scalar_one() == sum(c.open is not None for c in self.conversations)

    @invariant()
    def the_feed_goes_on_without_loss_or_repetition(self) -> None:
        with self.engine.connect() as conn:
            wait_for_others(conn)
            page = read_page(conn, after=self._last(), limit=1000)
        assert [(event.stream, event.version) for event in page] == self.fresh
        self.fresh = []
        if page:
            self.cursor = page[-1].cursor

    @invariant()
    def every_chain_verifies(self) -> None:
        with self.engine.connect() as conn:
            assert list(verify(conn, Walked())) == []

    def _ask(self, conversation: ModelConversation | None, text: str, key: str | None, *, kept: bool) -> None:
        request = replace(
            REQUEST,
            tenant=self.tenant,
            conversation=conversation.id if conversation else None,
            messages=(NewMessage(role=Role.USER, text=text),),
            idempotency_key=key,
            request_hash=uuid4().hex,
        )
        used = key is not None and key in [turn.key for _, turn in self._keyed()]
        refusal = InvalidInput if used else conversation.refusal() if conversation else None
        if refusal is None and not text.strip():
            refusal = InvalidInput  # there is nothing to answer
        accepted = self._do(lambda conn: self._accept(conn, request), kept=kept)
        if refusal is not None:
            assert isinstance(accepted, refusal)
            return
        assert isinstance(accepted, Accepted)
        assert accepted.fresh
        if not kept:
            return
        if conversation is None:
            conversation = ModelConversation(id=accepted.conversation)
            self.conversations.append(conversation)
            self.fresh.append((conversation.id, 1))
        conversation.turns.append(ModelTurn(id=accepted.turn, text=text, key=key, request=request))
        self._appended(conversation, "message.accepted", "turn.started")

    def _do(self, work: Transaction, *, kept: bool) -> Any:
        """What came of it, or the error it was refused with; a transaction that is not kept leaves nothing."""
        with self.engine.connect() as conn:
            try:
                result = work(conn)
            except EverturnError as error:
                return error
            if kept:
                conn.commit()
            return result

    def _accept(self, conn: Connection, request: TurnRequest) -> Accepted:
        return conversation_flow.accept_turn(
            conn, request, owner="api_test", lease_s=LEASE_S, now=NOW, new_id=new_id
        )

    def _plan(self, conn: Connection, conversation: ModelConversation, turn: ModelTurn) -> Any:
        return turn_flow.plan_attempt(
            conn,
            tenant=self.tenant,
            conversation=conversation.id,
            turn=turn.id,
            avoid=frozenset(),
            rebuild_min_tokens=8,
            now=NOW,
            new_id=new_id,
        )

    def _fail_attempt(self, conn: Connection, conversation: ModelConversation, failed: AttemptFailed) -> None:
        turn_flow.fail_attempt(
            conn, tenant=self.tenant, conversation=conversation.id, refusal=None, failed=failed, now=NOW
        )

    def _complete(self, conn: Connection, conversation: ModelConversation, event: TurnCompleted) -> None:
        turn_flow.complete_turn(
            conn,
            tenant=self.tenant,
            conversation=conversation.id,
            refusal=None,
            completed=event,
            now=NOW,
        )

    def _fail(
        self, conn: Connection, conversation: ModelConversation, turn: ModelTurn, *, orphaned: bool
    ) -> None:
        if orphaned:
            fail_as_orphan(conn, self.tenant, conversation.id, turn.id, NOW)
            return
        turn_flow.fail_turn(
            conn,
            tenant=self.tenant,
            conversation=conversation.id,
            turn=turn.id,
            code="cancelled",
            message="cancelled",
            now=NOW,
        )

    def _erase(self, conn: Connection, conversation: ModelConversation) -> Any:
        return erase_conversation(
            conn, tenant=self.tenant, conversation=conversation.id, by="key", reason="", now=NOW
        )

    def _failed(self, conversation: ModelConversation, turn: ModelTurn) -> None:
        if turn.state in ENDED:
            return
        attempt = ["attempt.failed"] if turn.state is TurnState.PINNED else []
        turn.state = TurnState.FAILED
        self._appended(conversation, *attempt, "turn.failed")

    def _appended(self, conversation: ModelConversation, *names: str) -> None:
        for name in names:
            conversation.names.append(name)
            self.fresh.append((conversation.id, len(conversation.names)))

    def _pick(self, pick: int) -> ModelConversation:
        return self.conversations[pick % len(self.conversations)]

    def _keyed(self) -> list[tuple[ModelConversation, ModelTurn]]:
        return [(c, turn) for c in self.conversations for turn in c.turns if turn.key is not None]

    def _last(self) -> Cursor:
        return getattr(self, "cursor", Cursor())


def check_flows(engine: Engine, *, examples: int, steps: int) -> None:
    """On a database without engines."""
    with engine.begin() as conn:
        move_alias(conn, add_engine(conn, "a", "boot_a"))
        fleet.heartbeat(conn, boot=BootId("boot_a"), lease_s=LEASE_S)
    run_state_machine_as_test(
        type("BoundTurns", (Turns,), {"engine": engine}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_flows_do_as_their_model(engine: Engine) -> None:
    check_flows(engine, examples=12, steps=20)
