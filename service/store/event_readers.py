"""How each version of each event that was ever stored is read: explicit names, and a schema number for each."""

from collections.abc import Callable
from typing import Any

from service.domain.artifact import BootId
from service.domain.canary import CanaryFailed, CanaryForgotten, CanaryRecorded
from service.domain.contract import Contract
from service.domain.events import (
    AliasMoved,
    AttemptFailed,
    ConversationCreated,
    ConversationDeleted,
    ConversationErased,
    ConversationForked,
    ConversationUpdated,
    Event,
    FunctionCallAccepted,
    FunctionCallOutputAccepted,
    ItemDeleted,
    KvRebuilt,
    KvRefused,
    KvSource,
    MessageAccepted,
    OnUpgrade,
    PlanKind,
    PolicyLevel,
    ReasoningAccepted,
    ResponseDeleted,
    Role,
    Sampling,
    TurnAsked,
    TurnCompleted,
    TurnFailed,
    TurnParsed,
    TurnPinned,
    TurnScored,
    TurnStarted,
    TurnStreamed,
)
from service.domain.evidence import Loaded, Refusal
from service.domain.fleet_events import (
    AdapterServed,
    AdapterWithdrawn,
    ContractApproved,
    ContractRevoked,
    EngineRegistered,
    TenantPolicySet,
)
from service.domain.items import CallId, ItemKind, Part
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
from service.domain.scores import Candidate, TokenLogprob
from service.domain.terms import OnDisconnect, Terms

Json = dict[str, Any]

SCORES = "scores"
"""Of `turn.scored`: its tokens are the model's words, so they are content too, as JSON."""


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
            "terms": _terms(d.get("terms")),
        }
    )


def _terms(d: Json | None) -> Terms | None:
    if d is None:
        return None
    deadline_s = d["deadline_s"]
    return Terms(
        background=d["background"],
        on_disconnect=OnDisconnect(d["on_disconnect"]),
        deadline_s=None if deadline_s is None else float(deadline_s),
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


def _canary_recorded(d: Json) -> CanaryRecorded:
    return CanaryRecorded(**d | {part: tuple(d[part]) for part in ("prompt", "answer")})


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


def _call(d: Json) -> FunctionCallAccepted:
    return FunctionCallAccepted(**d | {"call": CallId(d["call"])})


def _call_output(d: Json) -> FunctionCallOutputAccepted:
    return FunctionCallOutputAccepted(**d | {"call": CallId(d["call"])})


def _turn_parsed(d: Json) -> TurnParsed:
    parts = tuple(Part(**part | {"kind": ItemKind(part["kind"])}) for part in d["parts"])
    return TurnParsed(**d | {"items": tuple(d["items"]), "parts": parts})


READERS: dict[tuple[str, int], Callable[[Json], Event]] = {
    (ConversationCreated.name, 1): _conversation_created,
    (ConversationCreated.name, 2): _conversation_created,
    (ConversationErased.name, 1): lambda d: ConversationErased(**d),
    (ConversationForked.name, 1): lambda d: ConversationForked(**d),
    (ConversationUpdated.name, 1): lambda d: ConversationUpdated(**d),
    (ConversationDeleted.name, 1): lambda d: ConversationDeleted(**d),
    (MessageAccepted.name, 1): _message_accepted,
    (FunctionCallAccepted.name, 1): _call,
    (FunctionCallOutputAccepted.name, 1): _call_output,
    (ReasoningAccepted.name, 1): lambda d: ReasoningAccepted(**d),
    (ItemDeleted.name, 1): lambda d: ItemDeleted(**d),
    (ResponseDeleted.name, 1): lambda d: ResponseDeleted(**d),
    (TurnStarted.name, 1): _turn_started,
    (TurnStarted.name, 2): _turn_started,
    (TurnStarted.name, 3): _turn_started,
    (TurnStarted.name, 4): _turn_started,
    (TurnStarted.name, 5): _turn_started,
    (TurnStarted.name, 6): _turn_started,
    (TurnAsked.name, 1): lambda d: TurnAsked(**d),
    (TurnAsked.name, 2): lambda d: TurnAsked(**d),
    (TurnPinned.name, 1): _turn_pinned,
    (TurnPinned.name, 2): _turn_pinned,
    (TurnPinned.name, 3): _turn_pinned,
    (TurnPinned.name, 4): _turn_pinned,
    (TurnPinned.name, 5): _turn_pinned,
    (KvRefused.name, 1): _kv_refused,
    (KvRebuilt.name, 1): lambda d: KvRebuilt(**d),
    (AttemptFailed.name, 1): lambda d: AttemptFailed(**d),
    (TurnCompleted.name, 1): _turn_completed,
    (TurnCompleted.name, 2): _turn_completed,
    (TurnCompleted.name, 3): _turn_completed,
    (TurnCompleted.name, 4): _turn_completed,
    (TurnStreamed.name, 1): _turn_streamed,
    (TurnScored.name, 1): _turn_scored,
    (TurnParsed.name, 1): _turn_parsed,
    (TurnFailed.name, 1): lambda d: TurnFailed(**d),
    (AliasMoved.name, 1): lambda d: AliasMoved(**d),
    (AliasMoved.name, 2): lambda d: AliasMoved(**d | {"on_upgrade": _policy(d["on_upgrade"])}),
    (EngineRegistered.name, 1): lambda d: EngineRegistered(**d),
    (AdapterServed.name, 1): lambda d: AdapterServed(**d),
    (AdapterWithdrawn.name, 1): lambda d: AdapterWithdrawn(**d),
    (ContractApproved.name, 1): _contract_approved,
    (ContractRevoked.name, 1): lambda d: ContractRevoked(**d),
    (TenantPolicySet.name, 1): lambda d: TenantPolicySet(**d),
    (CanaryRecorded.name, 1): _canary_recorded,
    (CanaryFailed.name, 1): lambda d: CanaryFailed(**d),
    (CanaryForgotten.name, 1): lambda d: CanaryForgotten(**d),
    (RolloutStarted.name, 1): _rollout_started,
    (RolloutStarted.name, 2): _rollout_started,
    (RolloutStepped.name, 1): _rollout_stepped,
    (RolloutPaused.name, 1): lambda d: RolloutPaused(**d),
    (RolloutResumed.name, 1): lambda d: RolloutResumed(**d),
    (RolloutAborted.name, 1): lambda d: RolloutAborted(**d),
    (RolloutRolledBack.name, 1): lambda d: RolloutRolledBack(**d),
    (RolloutDone.name, 1): lambda d: RolloutDone(**d),
}
"""Only grows: what was once stored must stay readable."""

WRITTEN = {name: max(number for known, number in READERS if known == name) for name, _ in READERS}
"""The newest schema number of each event."""


def schema_of(event: Event) -> int:
    """The number that it is written with: not the newest where the one before says all of it, so that the version before reads it."""
    if isinstance(event, TurnPinned) and event.rebuild is None:
        return 4
    if isinstance(event, TurnAsked) and not event.labels:
        return 1
    return WRITTEN[event.name]
