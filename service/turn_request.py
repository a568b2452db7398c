"""What a client asks of a turn, and the events that accepting it adds to a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from service.domain import decide
from service.domain.conversation import Conversation, Item, accepted_item
from service.domain.errors import InvalidInput
from service.domain.events import (
    ConversationId,
    ItemAccepted,
    ItemId,
    OnUpgrade,
    Role,
    Sampling,
    TenantId,
    TurnAsked,
    TurnId,
    TurnStarted,
)
from service.domain.head import Standing
from service.domain.limits import NO_LIMITS, Limits
from service.domain.new_items import (
    NOTHING_WANTED,
    NewCall,
    NewId,
    NewItem,
    NewOutput,
    Wants,
    accept_item,
    wants_answer,
)
from service.domain.plan import resolve_policy
from service.domain.revision import RevisionDigest
from service.domain.terms import USUAL, Terms
from service.store import fleet, heads


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
    messages: tuple[NewItem, ...]
    """All that the client brings, function calls and their outputs included."""
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
    wants: Wants = NOTHING_WANTED
    truncate: bool = False
    """Whether the oldest items may be left out where the prompt would be too long."""
    turn: TurnId | None = None
    """Its id, where the caller is to know it before it is accepted."""
    terms: Terms = USUAL
    streamed: bool = False

    @property
    def brings_something(self) -> bool:
        """That wants an answer; if not, what waits in the conversation is to be answered."""
        return any(map(wants_answer, self.messages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Of a turn, as accepting the request adds it to the conversation."""

    items: tuple[ItemAccepted, ...]
    started: TurnStarted
    asked: TurnAsked | None


def begin_turn(conn: Connection, request: TurnRequest, state: Standing, new_id: NewId) -> Beginning:
    """Nothing is recorded yet.

    Raises:
        InvalidInput: the alias, the revision, or a function call without its output.
    """
    alias = known_alias(conn, request.alias or state.alias, "model")
    told = _instructions(conn, request, state)
    items = tuple(accept_item(new, new_id) for new in request.messages)
    if has_calls(state, request):
        _check_calls(conn, state, items)
    policy, level = resolve_policy(
        turn=request.on_upgrade,
        conversation=state.on_upgrade,
        alias=alias.on_upgrade,
        tenant=request.tenant_policy,
    )
    started = TurnStarted(
        turn=request.turn or TurnId(new_id("resp_")),
        items=tuple(one.item for one in items),
        alias=alias.name,
        on_upgrade=policy,
        policy_level=level,
        sampling=request.sampling,
        metadata=dict(request.metadata),
        instructions=told.known,
        revision=_known_revision(conn, request.revision),
        truncate=request.truncate,
        terms=None if request.terms == USUAL else request.terms,
    )
    return Beginning(items=items, started=started, asked=_asked(started.turn, request.wants, told.own))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instructions:
    """For their turn alone, unless the conversation begins with the same: then they are not said twice."""

    known: ItemId | None = None
    own: str = ""


def _instructions(conn: Connection, request: TurnRequest, state: Standing) -> _Instructions:
    text = request.instructions
    if not text:
        return _Instructions()
    there = items_of(conn, state)
    if there and there[0].role is Role.SYSTEM and there[0].text == text:
        return _Instructions(known=there[0].id)
    return _Instructions(own=text)


def _asked(turn: TurnId, wants: Wants, instructions: str) -> TurnAsked | None:
    if wants == NOTHING_WANTED and not instructions:
        return None
    return TurnAsked(
        turn=turn,
        tools=wants.tools,
        tool_choice=wants.tool_choice,
        text_format=wants.text_format,
        instructions=instructions,
        parallel_tool_calls=wants.parallel_tool_calls,
        labels=wants.labels,
    )


def has_calls(state: Standing, request: TurnRequest) -> bool:
    """Whether the items before the turn have to be read for its function calls: most turns have nothing to do with any."""
    return state.unsettled or any(isinstance(new, NewCall | NewOutput) for new in request.messages)


def _check_calls(conn: Connection, state: Standing, brought: Sequence[ItemAccepted]) -> None:
    before, added = items_of(conn, state), tuple(map(accepted_item, brought))
    decide.check_outputs(before, added, "input")
    decide.check_settled((*before, *added))


def items_of(conn: Connection, state: Standing) -> Sequence[Item]:
    """A head does not know them: they are read, for who needs to know."""
    if isinstance(state, Conversation):
        return state.items
    return heads.load_transcript(conn, state.tenant, state.id).items


def known_alias(conn: Connection, name: str, param: str) -> fleet.Alias:
    """Raises: InvalidInput: no such alias; lists those that there are."""
    alias = fleet.find_alias(conn, name)
    if alias is None:
        known = ", ".join(f"'{a.name}'" for a in fleet.list_aliases(conn)) or "none yet"
        raise InvalidInput(
            f"The model '{name}' does not exist. Known aliases: {known}.", param, "model_not_found"
        )
    return alias


def _known_revision(conn: Connection, revision: RevisionDigest | None) -> RevisionDigest | None:
    if revision is not None and fleet.find_descriptor(conn, revision) is None:
        raise InvalidInput(f"No revision {revision} is registered here.", "revision", "revision_not_found")
    return revision
