"""Conversations made, turns accepted on them, and both read back; each function is one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import takewhile

from sqlalchemy import Connection

from service import fork_flow
from service.domain import decide
from service.domain.conversation import Conversation, Item, accepted_item, evolve
from service.domain.errors import NotFound, key_reused
from service.domain.events import (
    ConversationCreated,
    ConversationEvent,
    ConversationId,
    ItemAccepted,
    ItemId,
    OnUpgrade,
    TenantId,
    TurnCompleted,
    TurnId,
    TurnStarted,
)
from service.domain.head import Head, LastAnswer, Standing, advance_head, head_of, last_answer
from service.domain.limits import NO_LIMITS, Limits
from service.domain.new_items import NewId, NewItem, NewMessage, NewReasoning, accept_item
from service.domain.terms import OnDisconnect
from service.domain.transcript import Transcript, transcribe
from service.domain.turn import Turn, advance
from service.domain.unanswered import waits_for_answer
from service.fork_flow import ForkPoint, Opening
from service.store import ancestry, event_store, heads, tenants, turns
from service.store.timeline import Recorded, read_recorded
from service.turn_request import Beginning, TurnRequest, begin_turn, has_calls, items_of, known_alias

PREVIOUS = "previous_response_id"
CANCELLED = "cancelled"
DISCONNECTED = "client_disconnected"
"""The codes of turns that their clients ended: by saying so, and by going away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    conversation: ConversationId
    turn: TurnId
    fresh: bool
    """False where the idempotency key had already started this turn."""
    begun: "Begun | None" = None
    """Of a fresh one; None where it was looked for after the reply to its COMMIT was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    state: Conversation
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    conversation: ConversationId
    turn: Turn
    previous: LastAnswer | None
    """The last answer before this turn."""
    instructions: str | None
    """Where they are an item of the conversation."""
    created_at: datetime
    completed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A turn as its acceptance recorded it: what would be read back."""

    head: Head
    stored: StoredTurn
    transcript: Transcript | None = None
    """Where it is known without having been read: of a conversation in which nothing was said before."""


def create_conversation(
    conn: Connection,
    *,
    tenant: TenantId,
    alias: str,
    on_upgrade: OnUpgrade | None,
    metadata: Mapping[str, str],
    messages: Sequence[NewItem],
    now: datetime,
    new_id: NewId,
    limits: Limits = NO_LIMITS,
) -> ConversationId:
    """Raises: InvalidInput: no such alias, or a limit of the tenant."""
    created = ConversationCreated(alias=alias, on_upgrade=on_upgrade, metadata=dict(metadata))
    fresh = Conversation(tenant=tenant, id=ConversationId(new_id("conv_")))
    made = Opening(state=evolve(fresh, created), events=(created,))
    return _record(conn, made, [accept_item(one, new_id) for one in messages], now, limits)


def fork_conversation(
    conn: Connection,
    *,
    tenant: TenantId,
    point: ForkPoint,
    alias: str | None,
    on_upgrade: OnUpgrade | None,
    metadata: Mapping[str, str] | None,
    messages: Sequence[NewItem],
    now: datetime,
    new_id: NewId,
    limits: Limits = NO_LIMITS,
) -> ConversationId:
    """What is None is as in the conversation that is forked.

    Raises:
        NotFound, Gone: the conversation, or the response after which it is forked.
        InvalidInput: no answer to go on from, too many forks of forks, no such alias, or a limit of the tenant.
    """
    origin, turn = fork_flow.find_origin(conn, tenant, point)
    created = fork_flow.made_like(conn, origin, alias=alias, on_upgrade=on_upgrade, metadata=metadata)
    light = limits.items is None and all(isinstance(one, NewMessage | NewReasoning) for one in messages)
    way = fork_flow.fork if light else fork_flow.fork_whole
    made = way(conn, origin, turn, new_id, created=created, param="fork_of.after_response")
    return _record(conn, made, [accept_item(one, new_id) for one in messages], now, limits)


def accept_turn(
    conn: Connection, request: TurnRequest, *, owner: str, lease_s: float, now: datetime, new_id: NewId
) -> Accepted:
    """Raises:
    InvalidInput: the alias, the previous response, the idempotency key, or a limit of the tenant.
    NotFound: the conversation or the previous response.
    ConversationLocked: another turn is open on it.
    VersionConflict: another writer was quicker; ask again.
    """
    if request.idempotency_key is not None:
        # Of two at once, the second must find what the first has made, and not that a turn is open or the head has moved.
        event_store.lock_stream(conn, request.tenant, f"key/{request.idempotency_key}")
        known = turns.find_idempotent(conn, request.tenant, request.idempotency_key)
        if known is not None:
            return _same_request(known, request)
    if request.repeated and (same := _last_turn(conn, request)) is not None:
        return same
    state, made = _standing(conn, request, new_id)
    tenants.check_new_turn(conn, request.tenant, request.limits)
    if made:
        tenants.check_new_conversation(conn, request.tenant, request.limits)
    turn = begin_turn(conn, request, state, new_id)
    if request.limits.items is not None:
        request.limits.check("items", len(items_of(conn, state)) + len(turn.items))
    request.limits.check("tokens", state.window_tokens)
    # Of a fork that is not recorded yet nothing is read, and nothing waits: it ends with an answer, or else was loaded whole.
    before = () if request.brings_something else items_of(conn, state)
    events = decide.accept_turn(state, turn.items, turn.started, turn.asked, before)
    event_store.append(
        conn,
        tenant=request.tenant,
        stream=state.id,
        expected_version=state.version - len(made),
        events=[*made, *events],
        now=now,
    )
    turns.open_turn(
        conn,
        tenant=request.tenant,
        turn=turn.started.turn,
        conversation=state.id,
        idempotency_key=request.idempotency_key,
        request_hash=request.request_hash,
        owner=owner,
        lease_s=lease_s,
        run=_run(request),
    )
    begun = _begun(state, events, turn, request.instructions, now)
    return Accepted(conversation=state.id, turn=turn.started.turn, fresh=True, begun=begun)


def _begun(
    state: Standing, events: Sequence[ConversationEvent], turn: Beginning, told: str | None, now: datetime
) -> Begun:
    """Args: told: the instructions that the request came with."""
    before = state if isinstance(state, Head) else head_of(state)
    started = turn.started
    stored = StoredTurn(
        conversation=state.id,
        turn=reduce(advance, (turn.asked,) if turn.asked else (), Turn.of(started)),
        previous=before.last,
        instructions=None if started.instructions is None else told,
        created_at=now,
        completed_at=None,
    )
    said_nothing = before.version <= 1 and not before.ancestors
    return Begun(
        head=reduce(advance_head, events, before),
        stored=stored,
        transcript=transcribe(events) if said_nothing else None,
    )


def _run(request: TurnRequest) -> turns.Run:
    terms = request.terms
    return turns.Run(
        background=terms.background,
        # Later readers of one in the background may want it as a stream.
        streamed=request.streamed or terms.background,
        finish=terms.background or terms.on_disconnect is OnDisconnect.CONTINUE,
        deadline_s=terms.deadline_s,
    )


def preview_turn(conn: Connection, request: TurnRequest, new_id: NewId) -> tuple[Conversation, Beginning]:
    """The conversation as its next turn would find it, and that turn; nothing is recorded.

    Raises: as `accept_turn`.
    """
    state = _opening(conn, request, new_id).state
    turn = begin_turn(conn, request, state, new_id)
    return reduce(evolve, turn.items, state), turn


def find_conversation(conn: Connection, tenant: TenantId, conversation: ConversationId) -> StoredConversation:
    """Raises: NotFound: also for another tenant's."""
    recorded = read_recorded(conn, tenant=tenant, stream=conversation)
    if not recorded:
        raise NotFound("conversation", conversation)
    state = _fold(conn, tenant, conversation, recorded)
    decide.check_there(state)
    return StoredConversation(state=state, created_at=recorded[0].occurred_at)


def find_response(conn: Connection, tenant: TenantId, turn: TurnId) -> StoredTurn:
    """Raises: NotFound: also for another tenant's."""
    state, recorded = _conversation_of(conn, tenant, turn)
    found = decide.find_response(state, turn)
    times = {r.event.name: r.occurred_at for r in recorded if getattr(r.event, "turn", None) == turn}
    told = found.started.instructions
    return StoredTurn(
        conversation=state.id,
        turn=found,
        previous=_answer_before(state, turn),
        instructions=None if told is None else _items_ever(state)[told].text,
        created_at=times[TurnStarted.name],
        completed_at=times.get(TurnCompleted.name),
    )


def find_input(conn: Connection, tenant: TenantId, turn: TurnId) -> list[Item]:
    """What the turn's request brought; instructions are no items. Raises: NotFound: also for another tenant's."""
    state, _ = _conversation_of(conn, tenant, turn)
    started, known = decide.find_response(state, turn).started, _items_ever(state)
    return [known[one] for one in started.items if one != started.instructions]


def _conversation_of(
    conn: Connection, tenant: TenantId, turn: TurnId
) -> tuple[Conversation, Sequence[Recorded]]:
    conversation = turns.find_turn(conn, tenant, turn)
    if conversation is None:
        raise NotFound("response", turn)
    recorded = read_recorded(conn, tenant=tenant, stream=conversation)
    return _fold(conn, tenant, conversation, recorded), recorded


def _items_ever(state: Conversation) -> dict[ItemId, Item]:
    return {item.id: item for item in (*state.items, *state.withdrawn)}


def _same_request(known: turns.IdempotentTurn, request: TurnRequest) -> Accepted:
    if known.request_hash != request.request_hash:
        raise key_reused(request.idempotency_key, f"response {known.turn}")
    return Accepted(conversation=known.conversation, turn=known.turn, fresh=False)


def _last_turn(conn: Connection, request: TurnRequest) -> Accepted | None:
    """The open or last turn of the conversation, or the newest on a fork of it, if this very request made it."""
    conversation = request.conversation
    if request.previous is not None:
        conversation = turns.find_turn(conn, request.tenant, request.previous)
    if conversation is None:
        return None
    head = heads.load_head(conn, request.tenant, conversation, for_update=True)
    turn = head.newest
    if turn is not None and turns.request_hash_of(conn, request.tenant, turn.id) == request.request_hash:
        # Bodies that bring nothing are all alike: where something waits, they are about that.
        ended = head.open_turn is None
        if ended and not request.brings_something and waits_for_answer(items_of(conn, head)):
            return None
        return Accepted(conversation=conversation, turn=turn.id, fresh=False)
    if request.previous is None:
        return None
    forks = ancestry.children(conn, request.tenant, conversation)
    same = turns.newest_of_request(conn, request.tenant, forks, request.request_hash)
    return None if same is None else Accepted(conversation=same.conversation, turn=same.turn, fresh=False)


def _standing(
    conn: Connection, request: TurnRequest, new_id: NewId
) -> tuple[Standing, tuple[ConversationEvent, ...]]:
    """As `_opening`, without what was said wherever the conversation simply goes on."""
    if (conversation := _conversation(conn, request)) is not None:
        head = heads.load_head(conn, request.tenant, conversation, for_update=True, turn=request.previous)
        decide.check_there(head)
        decide.check_head(head, request.head)
        if request.previous is None or decide.is_latest(head, request.previous):
            return head, ()
        if request.limits.items is None and request.instructions is None:
            fork = fork_flow.fork(conn, head, request.previous, new_id, param=PREVIOUS)
            if not has_calls(fork.state, request):
                return fork.state, fork.events
    opening = _opening(conn, request, new_id)
    return opening.state, opening.events


def _opening(conn: Connection, request: TurnRequest, new_id: NewId) -> Opening[Conversation]:
    """The conversation as the turn finds it, and what has to be recorded first where it is a new one."""
    conversation = _conversation(conn, request)
    if conversation is None:
        fresh = Conversation(tenant=request.tenant, id=ConversationId(new_id("conv_")))
        decide.check_head(fresh, request.head)
        created = ConversationCreated(alias=request.alias or request.default_alias)
        return Opening(state=evolve(fresh, created), events=(created,))
    state = event_store.load_conversation(conn, request.tenant, conversation, for_update=True)
    decide.check_there(state)
    decide.check_head(state, request.head)
    if request.previous is None or decide.is_latest(state, request.previous):
        return Opening(state=state, events=())
    return fork_flow.fork_whole(conn, state, request.previous, new_id, param=PREVIOUS)


def _conversation(conn: Connection, request: TurnRequest) -> ConversationId | None:
    """None for one that is to be made."""
    if request.previous is None:
        return request.conversation
    conversation = turns.find_turn(conn, request.tenant, request.previous)
    if conversation is None:
        raise NotFound("response", request.previous, PREVIOUS)
    return conversation


def _answer_before(state: Conversation, turn: TurnId) -> LastAnswer | None:
    earlier = takewhile(lambda t: t.id != turn, state.turns.values())
    return next((last_answer(t.completed) for t in reversed([*earlier]) if t.completed is not None), None)


def _fold(
    conn: Connection, tenant: TenantId, conversation: ConversationId, recorded: Sequence[Recorded]
) -> Conversation:
    return ancestry.fold(conn, tenant, conversation, [one.event for one in recorded])


def _record(
    conn: Connection,
    made: Opening[Standing],
    messages: Sequence[ItemAccepted],
    now: datetime,
    limits: Limits,
) -> ConversationId:
    known_alias(conn, made.state.alias, "alias")
    if isinstance(made.state, Conversation):
        limits.check("items", len(made.state.items) + len(messages))
        decide.check_outputs(made.state.items, [accepted_item(one) for one in messages], "items")
    tenants.check_new_conversation(conn, made.state.tenant, limits)
    event_store.append(
        conn,
        tenant=made.state.tenant,
        stream=made.state.id,
        expected_version=0,
        events=[*made.events, *messages],
        now=now,
    )
    return made.state.id
