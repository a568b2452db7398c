"""Conversations made, turns accepted on them, and both read back; each function is one transaction."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import takewhile

from sqlalchemy import Connection

from service import fork_flow
from service.domain import decide
from service.domain.conversation import Conversation, evolve
from service.domain.errors import InvalidInput, NotFound
from service.domain.events import (
    ConversationCreated,
    ConversationEvent,
    ConversationId,
    ItemId,
    MessageAccepted,
    OnUpgrade,
    Role,
    Sampling,
    TenantId,
    TurnCompleted,
    TurnId,
    TurnStarted,
)
from service.domain.head import Standing
from service.domain.limits import NO_LIMITS, Limits
from service.domain.plan import resolve_policy
from service.domain.revision import RevisionDigest
from service.domain.turn import Turn
from service.fork_flow import ForkPoint, Opening
from service.store import ancestry, event_store, fleet, heads, tenants, turns
from service.store.timeline import Recorded, read_recorded

NewId = Callable[[str], str]
"""A fresh id under the given prefix."""

CANCELLED = "cancelled"
"""The code of a turn that its client ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    role: Role
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """What a client asks for, its shape already checked.

    With neither `conversation` nor `previous`, a conversation is made, on `alias` or else `default_alias`.
    """

    tenant: TenantId
    tenant_policy: OnUpgrade | None
    conversation: ConversationId | None
    previous: TurnId | None
    alias: str | None
    default_alias: str
    messages: tuple[NewMessage, ...]
    instructions: str | None
    on_upgrade: OnUpgrade | None
    sampling: Sampling
    metadata: Mapping[str, str]
    idempotency_key: str | None
    request_hash: str
    limits: Limits = NO_LIMITS
    head: int | None = None
    """The version of the conversation that the client has seen; None where it does not matter to it."""
    repeated: bool = False
    """Whether the client says that it has sent this before, under no idempotency key."""
    revision: RevisionDigest | None = None
    """The only one that may answer, whatever the alias points at."""
    truncate: bool = False
    """Whether the oldest items may be left out where the prompt would be too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    conversation: ConversationId
    turn: TurnId
    fresh: bool
    """False where the idempotency key had already started this turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    state: Conversation
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    state: Conversation
    turn: Turn
    previous: TurnCompleted | None
    """The last answer before this turn."""
    created_at: datetime
    completed_at: datetime | None


def create_conversation(
    conn: Connection,
    *,
    tenant: TenantId,
    alias: str,
    on_upgrade: OnUpgrade | None,
    metadata: Mapping[str, str],
    messages: Sequence[NewMessage],
    now: datetime,
    new_id: NewId,
    limits: Limits = NO_LIMITS,
) -> ConversationId:
    """Raises: InvalidInput: no such alias, or a limit of the tenant."""
    created = ConversationCreated(alias=alias, on_upgrade=on_upgrade, metadata=dict(metadata))
    fresh = Conversation(tenant=tenant, id=ConversationId(new_id("conv_")))
    made = Opening(state=evolve(fresh, created), events=(created,))
    return _record(conn, made, [new_message(m, new_id) for m in messages], now, limits)


def fork_conversation(
    conn: Connection,
    *,
    tenant: TenantId,
    point: ForkPoint,
    alias: str | None,
    on_upgrade: OnUpgrade | None,
    metadata: Mapping[str, str] | None,
    messages: Sequence[NewMessage],
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
    created = fork_flow.made_like(origin, alias=alias, on_upgrade=on_upgrade, metadata=metadata)
    child = ConversationId(new_id("conv_"))
    made = fork_flow.fork(conn, origin, turn, child, created, param="fork_of.after_response")
    return _record(conn, made, [new_message(m, new_id) for m in messages], now, limits)


def accept_turn(
    conn: Connection, request: TurnRequest, *, owner: str, lease_s: float, now: datetime, new_id: NewId
) -> Accepted:
    """Raises:
    InvalidInput: the alias, the previous response, the instructions, the idempotency key, or a limit of the tenant.
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
    started, messages = _started(conn, request, state, new_id)
    if request.limits.items is not None:
        request.limits.check("items", _items(conn, state) + len(messages))
    request.limits.check("tokens", state.window_tokens)
    event_store.append(
        conn,
        tenant=request.tenant,
        stream=state.id,
        expected_version=state.version - len(made),
        events=[*made, *decide.accept_turn(state, messages, started)],
        now=now,
    )
    turns.open_turn(
        conn,
        tenant=request.tenant,
        turn=started.turn,
        conversation=state.id,
        idempotency_key=request.idempotency_key,
        request_hash=request.request_hash,
        owner=owner,
        lease_s=lease_s,
    )
    return Accepted(conversation=state.id, turn=started.turn, fresh=True)


def preview_turn(conn: Connection, request: TurnRequest, new_id: NewId) -> tuple[Conversation, TurnStarted]:
    """The conversation as its next turn would find it, and that turn; nothing is recorded.

    Raises: as `accept_turn`.
    """
    state = _opening(conn, request, new_id).state
    started, messages = _started(conn, request, state, new_id)
    return reduce(evolve, messages, state), started


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
    conversation = turns.find_turn(conn, tenant, turn)
    if conversation is None:
        raise NotFound("response", turn)
    recorded = read_recorded(conn, tenant=tenant, stream=conversation)
    state = _fold(conn, tenant, conversation, recorded)
    times = {r.event.name: r.occurred_at for r in recorded if getattr(r.event, "turn", None) == turn}
    return StoredTurn(
        state=state,
        turn=decide.find_response(state, turn),
        previous=_answer_before(state, turn),
        created_at=times[TurnStarted.name],
        completed_at=times.get(TurnCompleted.name),
    )


def new_message(message: NewMessage, new_id: NewId) -> MessageAccepted:
    return MessageAccepted(item=ItemId(new_id("msg_")), role=message.role, text=message.text)


def known_alias(conn: Connection, name: str, param: str) -> fleet.Alias:
    """Raises: InvalidInput: no such alias; lists those that there are."""
    alias = fleet.find_alias(conn, name)
    if alias is None:
        known = ", ".join(f"'{a.name}'" for a in fleet.list_aliases(conn)) or "none yet"
        raise InvalidInput(
            f"The model '{name}' does not exist. Known aliases: {known}.", param, "model_not_found"
        )
    return alias


def _same_request(known: turns.IdempotentTurn, request: TurnRequest) -> Accepted:
    if known.request_hash != request.request_hash:
        raise InvalidInput(
            f"The Idempotency-Key '{request.idempotency_key}' belongs to another request, response {known.turn}. "
            "Use a new key for a new request.",
            "Idempotency-Key",
            "idempotency_key_reused",
        )
    return Accepted(conversation=known.conversation, turn=known.turn, fresh=False)


def _last_turn(conn: Connection, request: TurnRequest) -> Accepted | None:
    """The open or last turn of the conversation, or the newest on a fork of it, if this very request made it."""
    conversation = request.conversation
    if request.previous is not None:
        conversation = turns.find_turn(conn, request.tenant, request.previous)
    if conversation is None:
        return None
    turn = heads.load_head(conn, request.tenant, conversation, for_update=True).newest
    if turn is not None and turns.request_hash_of(conn, request.tenant, turn.id) == request.request_hash:
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
    opening = _opening(conn, request, new_id)
    return opening.state, opening.events


def _opening(conn: Connection, request: TurnRequest, new_id: NewId) -> Opening:
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
    child = ConversationId(new_id("conv_"))
    created = fork_flow.made_like(state)
    return fork_flow.fork(conn, state, request.previous, child, created, param="previous_response_id")


def _conversation(conn: Connection, request: TurnRequest) -> ConversationId | None:
    """None for one that is to be made."""
    if request.previous is None:
        return request.conversation
    conversation = turns.find_turn(conn, request.tenant, request.previous)
    if conversation is None:
        raise NotFound("response", request.previous, "previous_response_id")
    return conversation


def _items(conn: Connection, state: Standing) -> int:
    """A head does not know how many there are: they are read, for who needs to know."""
    if isinstance(state, Conversation):
        return len(state.items)
    return len(heads.load_transcript(conn, state.tenant, state.id).items)


def _started(
    conn: Connection, request: TurnRequest, state: Standing, new_id: NewId
) -> tuple[TurnStarted, tuple[MessageAccepted, ...]]:
    alias = known_alias(conn, request.alias or state.alias, "model")
    if request.instructions is not None and _items(conn, state):
        raise InvalidInput(
            "'instructions' can only be given with the first items of a conversation: later ones would change "
            "what its earlier turns were answered under. Send a system message in 'input' instead.",
            "instructions",
            "unsupported_parameter",
        )
    given = () if request.instructions is None else (NewMessage(role=Role.SYSTEM, text=request.instructions),)
    messages = tuple(new_message(m, new_id) for m in (*given, *request.messages))
    policy, level = resolve_policy(
        turn=request.on_upgrade,
        conversation=state.on_upgrade,
        alias=alias.on_upgrade,
        tenant=request.tenant_policy,
    )
    started = TurnStarted(
        turn=TurnId(new_id("resp_")),
        items=tuple(m.item for m in messages),
        alias=alias.name,
        on_upgrade=policy,
        policy_level=level,
        sampling=request.sampling,
        metadata=dict(request.metadata),
        instructions=messages[0].item if given else None,
        revision=_known_revision(conn, request.revision),
        truncate=request.truncate,
    )
    return started, messages


def _known_revision(conn: Connection, revision: RevisionDigest | None) -> RevisionDigest | None:
    if revision is not None and fleet.find_descriptor(conn, revision) is None:
        raise InvalidInput(f"No revision {revision} is registered here.", "revision", "revision_not_found")
    return revision


def _answer_before(state: Conversation, turn: TurnId) -> TurnCompleted | None:
    earlier = takewhile(lambda t: t.id != turn, state.turns.values())
    return next((t.completed for t in reversed([*earlier]) if t.completed is not None), None)


def _fold(
    conn: Connection, tenant: TenantId, conversation: ConversationId, recorded: Sequence[Recorded]
) -> Conversation:
    return ancestry.fold(conn, tenant, conversation, [one.event for one in recorded])


def _record(
    conn: Connection, made: Opening, messages: Sequence[MessageAccepted], now: datetime, limits: Limits
) -> ConversationId:
    known_alias(conn, made.state.alias, "alias")
    limits.check("items", len(made.state.items) + len(messages))
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
