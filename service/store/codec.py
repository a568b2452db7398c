"""Events to rows and back: explicit names, a schema number for each, and no text or token id that does not survive."""

import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields, is_dataclass
from struct import error as StructError  # noqa: N812 a class under a lower-case name
from struct import unpack
from typing import TYPE_CHECKING, Any

from service.domain.artifact import BootId, pack_tokens
from service.domain.contract import Contract
from service.domain.errors import Internal, InvalidInput
from service.domain.events import (
    AdapterServed,
    AdapterWithdrawn,
    AliasMoved,
    AttemptFailed,
    Candidate,
    ContractApproved,
    ContractRevoked,
    ConversationCreated,
    ConversationDeleted,
    ConversationErased,
    ConversationForked,
    ConversationUpdated,
    EngineRegistered,
    Event,
    ItemDeleted,
    KvRebuilt,
    KvRefused,
    KvSource,
    MessageAccepted,
    OnUpgrade,
    PlanKind,
    PolicyLevel,
    ResponseDeleted,
    Role,
    Sampling,
    TokenLogprob,
    TurnCompleted,
    TurnFailed,
    TurnPinned,
    TurnScored,
    TurnStarted,
    TurnStreamed,
)
from service.domain.evidence import Loaded, Refusal
from service.domain.rollout_events import (
    Drain,
    Limits,
    RolloutAborted,
    RolloutDone,
    RolloutPaused,
    RolloutResumed,
    RolloutRolledBack,
    RolloutStarted,
    RolloutState,
    RolloutStepped,
    Share,
    Strategy,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """`content` is the event's text as UTF-8 that lets lone surrogates pass; `tokens` little-endian uint32."""

    type: str
    schema_number: int
    payload: Json
    content: bytes | None = None
    tokens: bytes | None = None


def encode(event: Event) -> EventRow:
    """Raises: InvalidInput for a number that no row can hold."""
    apart = {TEXT_FIELDS.get(event.name), METADATA if event.name in WITH_METADATA else None}
    payload = to_document(event, without={*apart, *TOKEN_FIELDS, SCORES})
    tokens = None
    if isinstance(event, TurnCompleted):
        tokens = _packed((*event.prompt_delta, *event.output))
        payload |= {field: len(getattr(event, field)) for field in TOKEN_FIELDS}
    if isinstance(event, TurnStreamed):
        payload["pieces"] = " ".join(map(str, event.pieces))  # jsonb takes a dozen bytes for a number
    return EventRow(
        type=event.name,
        schema_number=WRITTEN[event.name],
        payload=payload,
        content=_content(event),
        tokens=tokens,
    )


def decode(row: EventRow, *, erased: bool = False, tokenless: bool = False) -> Event:
    """What was `erased` comes back empty, and so do token ids that were left where they are.

    Raises:
        Internal: for a name or schema that this version does not know, and for a row that is not whole.
    """
    reader = READERS.get((row.type, row.schema_number))
    if reader is None:
        raise Internal(
            f"A stored event is '{row.type}' schema {row.schema_number}, which this version cannot read "
            f"(it reads {_readable(row.type)}). A newer version wrote it: run that version or a later one."
        )
    try:
        document = from_document(row.payload)
        if (field := TEXT_FIELDS.get(row.type)) is not None:
            document[field] = _whole(row.content, erased=erased).decode("utf-8", "surrogatepass")
        if row.type in WITH_METADATA and METADATA not in document:
            document[METADATA] = json.loads(row.content) if row.content is not None else {}
        if row.type == TurnScored.name:
            document[SCORES] = json.loads(_whole(row.content, erased=erased) or "[]")
        if row.type == TurnCompleted.name:
            absent = erased or tokenless
            document |= _token_fields(document, _whole(row.tokens, erased=absent), erased=absent)
        return reader(document)
    except (KeyError, TypeError, ValueError) as error:
        raise Internal(
            f"A stored '{row.type}' event of schema {row.schema_number} is damaged: {error!r}."
        ) from error


def to_document(value: "DataclassInstance", *, without: Container[str | None] = ()) -> Json:
    """A dataclass as JSON that jsonb accepts: NUL and lone surrogates, which it refuses, are escaped."""
    return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.name not in without}


def from_document(document: Mapping[str, Any]) -> Json:
    """The plain values of `to_document`, unescaped."""
    return {_restored(key): _unplain(value) for key, value in document.items()}


def to_json_text(document: object) -> str:
    """Raises: InvalidInput for a number that JSON does not have."""
    try:
        return json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:
        raise InvalidInput("A number that is not finite cannot be stored.") from error


# U+F8FF is the last private-use code point of the basic plane; where it occurs itself it is escaped too.
_MARK = "\uf8ff"
_UNSTORABLE = re.compile("[\x00\ud800-\udfff\uf8ff]")
_ESCAPED = re.compile("\uf8ff([0-9a-f]{4})")


def _escaped(text: str) -> str:
    return _UNSTORABLE.sub(lambda found: f"{_MARK}{ord(found[0]):04x}", text)


def _restored(text: str) -> str:
    if _MARK not in text:
        return text
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return to_document(value)
    match value:
        case str():
            return _escaped(value)
        case Mapping():
            return {_escaped(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value


def _unplain(value: Any) -> Any:
    match value:
        case str():
            return _restored(value)
        case dict():
            return from_document(value)
        case list():
            return [_unplain(item) for item in value]
        case _:
            return value


def _packed(tokens: tuple[int, ...]) -> bytes:
    try:
        return pack_tokens(tokens)
    except StructError as error:
        raise InvalidInput("A token id must be a whole number from 0 to 4294967295.") from error


def _content(event: Event) -> bytes | None:
    if (field := TEXT_FIELDS.get(event.name)) is not None:
        text: str = getattr(event, field)
        return text.encode("utf-8", "surrogatepass")
    if event.name in WITH_METADATA and (metadata := getattr(event, METADATA)):
        return json.dumps(dict(metadata)).encode("ascii")
    if isinstance(event, TurnScored):
        scores = [
            (score.token, score.logprob, [(other.token, other.logprob) for other in score.top])
            for score in event.scores
        ]
        # ASCII, so that a lone surrogate passes.
        return json.dumps(scores, allow_nan=False, separators=(",", ":")).encode("ascii")
    return None


def _token_fields(document: Json, tokens: bytes, *, erased: bool) -> Json:
    ids = unpack(f"<{len(tokens) // 4}I", tokens)
    delta, output = (document[field] for field in TOKEN_FIELDS)
    if len(ids) != delta + output and not (erased and not ids):
        msg = f"{len(ids)} token ids are stored, {delta} + {output} were counted"
        raise ValueError(msg)
    return {"prompt_delta": ids[:delta], "output": ids[delta:]}


def _whole(part: bytes | None, *, erased: bool) -> bytes:
    if part is None and not erased:
        msg = "its bytes are missing"
        raise ValueError(msg)
    return part or b""


def _readable(name: str) -> str:
    known = sorted(number for known, number in READERS if known == name)
    return f"schemas {', '.join(map(str, known))} of it" if known else "no such event"


def _conversation_created(d: Json) -> ConversationCreated:
    return ConversationCreated(**d | {"on_upgrade": _policy(d["on_upgrade"])})


def _message_accepted(d: Json) -> MessageAccepted:
    return MessageAccepted(**d | {"role": Role(d["role"])})


def _turn_started(d: Json) -> TurnStarted:
    sampling = d["sampling"]
    numbers = {name: float(sampling[name]) for name in ("temperature", "top_p")}
    return TurnStarted(
        **d
        | {
            "items": tuple(d["items"]),
            "on_upgrade": OnUpgrade(d["on_upgrade"]),
            "policy_level": PolicyLevel(d["policy_level"]),
            "sampling": Sampling(**sampling | numbers),
        }
    )


def _turn_pinned(d: Json) -> TurnPinned:
    return TurnPinned(**d | {"plan": PlanKind(d["plan"])})


def _kv_refused(d: Json) -> KvRefused:
    return KvRefused(**d | {"refusal": Refusal.from_json(d["refusal"])})


def _turn_completed(d: Json) -> TurnCompleted:
    loaded = d["loaded"]
    if loaded is not None:
        loaded = Loaded(**loaded | {"seconds": float(loaded["seconds"])})
    return TurnCompleted(**d | {"kv_source": KvSource(d["kv_source"]), "loaded": loaded})


def _contract_approved(d: Json) -> ContractApproved:
    terms = d["terms"]
    return ContractApproved(**d | {"terms": Contract(**terms | {"waived": tuple(terms["waived"])})})


def _turn_streamed(d: Json) -> TurnStreamed:
    pieces = tuple(int(piece) for piece in d["pieces"].split())
    return TurnStreamed(**d | {"pieces": pieces, "announced": tuple(d["announced"])})


def _turn_scored(d: Json) -> TurnScored:
    scores = tuple(
        TokenLogprob(token=token, logprob=logprob, top=tuple(Candidate(*other) for other in top))
        for token, logprob, top in d[SCORES]
    )
    return TurnScored(**d | {SCORES: scores})


def _rollout_started(d: Json) -> RolloutStarted:
    given = d["strategy"]
    strategy = Strategy(
        **given
        | {
            "shift": tuple(Share(**share) for share in given["shift"]),
            "drain": Drain(given["drain"]),
            "limits": Limits(**given["limits"]),
        }
    )
    return RolloutStarted(**d | {"strategy": strategy})


def _rollout_stepped(d: Json) -> RolloutStepped:
    engines = tuple(BootId(engine) for engine in d["engines"])
    return RolloutStepped(**d | {"state": RolloutState(d["state"]), "engines": engines})


def _policy(value: str | None) -> OnUpgrade | None:
    return None if value is None else OnUpgrade(value)


TEXT_FIELDS = {
    MessageAccepted.name: "text",
    TurnCompleted.name: "text",
    AttemptFailed.name: "partial_text",
    TurnStreamed.name: "text",
}
"""The field of each event that holds a person's or a model's words: stored as bytes, apart from the event."""

METADATA = "metadata"
WITH_METADATA = frozenset({ConversationCreated.name, ConversationUpdated.name, TurnStarted.name})
"""Events with a client's own names and values, which may be a person's: content too, as JSON, and none where empty.
Their first schema had them in the payload."""

SCORES = "scores"
"""Of `turn.scored`: its tokens are the model's words, so they are content too, as JSON."""

TOKEN_FIELDS = ("prompt_delta", "output")
"""Of `turn.completed`: the payload holds their lengths, the ids stand one after the other in `tokens`."""

READERS: dict[tuple[str, int], Callable[[Json], Event]] = {
    (ConversationCreated.name, 1): _conversation_created,
    (ConversationCreated.name, 2): _conversation_created,
    (ConversationErased.name, 1): lambda d: ConversationErased(**d),
    (ConversationForked.name, 1): lambda d: ConversationForked(**d),
    (ConversationUpdated.name, 1): lambda d: ConversationUpdated(**d),
    (ConversationDeleted.name, 1): lambda d: ConversationDeleted(**d),
    (MessageAccepted.name, 1): _message_accepted,
    (ItemDeleted.name, 1): lambda d: ItemDeleted(**d),
    (ResponseDeleted.name, 1): lambda d: ResponseDeleted(**d),
    (TurnStarted.name, 1): _turn_started,
    (TurnStarted.name, 2): _turn_started,
    (TurnStarted.name, 3): _turn_started,
    (TurnStarted.name, 4): _turn_started,
    (TurnStarted.name, 5): _turn_started,
    (TurnPinned.name, 1): _turn_pinned,
    (TurnPinned.name, 2): _turn_pinned,
    (TurnPinned.name, 3): _turn_pinned,
    (KvRefused.name, 1): _kv_refused,
    (KvRebuilt.name, 1): lambda d: KvRebuilt(**d),
    (AttemptFailed.name, 1): lambda d: AttemptFailed(**d),
    (TurnCompleted.name, 1): _turn_completed,
    (TurnCompleted.name, 2): _turn_completed,
    (TurnCompleted.name, 3): _turn_completed,
    (TurnStreamed.name, 1): _turn_streamed,
    (TurnScored.name, 1): _turn_scored,
    (TurnFailed.name, 1): lambda d: TurnFailed(**d),
    (AliasMoved.name, 1): lambda d: AliasMoved(**d),
    (AliasMoved.name, 2): lambda d: AliasMoved(**d | {"on_upgrade": _policy(d["on_upgrade"])}),
    (EngineRegistered.name, 1): lambda d: EngineRegistered(**d),
    (AdapterServed.name, 1): lambda d: AdapterServed(**d),
    (AdapterWithdrawn.name, 1): lambda d: AdapterWithdrawn(**d),
    (ContractApproved.name, 1): _contract_approved,
    (ContractRevoked.name, 1): lambda d: ContractRevoked(**d),
    (RolloutStarted.name, 1): _rollout_started,
    (RolloutStepped.name, 1): _rollout_stepped,
    (RolloutPaused.name, 1): lambda d: RolloutPaused(**d),
    (RolloutResumed.name, 1): lambda d: RolloutResumed(**d),
    (RolloutAborted.name, 1): lambda d: RolloutAborted(**d),
    (RolloutRolledBack.name, 1): lambda d: RolloutRolledBack(**d),
    (RolloutDone.name, 1): lambda d: RolloutDone(**d),
}
"""Only grows: what was once stored must stay readable."""

WRITTEN = {name: max(number for known, number in READERS if known == name) for name, _ in READERS}
"""The schema number that each event is written with now."""
