"""What /admin answers with, as types, where no value of the service says it already."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from service.api.openapi.objects import Shape
from service.api.openapi.stream_events import RecordedEvent
from service.domain.canary import CanaryFailed, CanaryRecorded
from service.domain.plan import EngineRole, EngineState, StoredArtifact
from service.domain.rollout import Troubles
from service.domain.rollout_events import RolloutState, Strategy
from service.store.fleet import Alias
from service.store.keys import KeyRecord
from service.store.rebuilds import Rebuild
from service.store.rollout_facts import Warmth
from service.store.tenants import TenantRecord
from service.store.waiting import WaitsFor


class Registered(Shape):
    revision: str


class Canary(Shape):
    revision: str
    recorded: CanaryRecorded | None
    failures: list[CanaryFailed]


class ForgottenCanary(Shape):
    revision: str
    recorded: None


class ListedRevision(Shape):
    revision: str
    label: str | None
    registered_at: datetime


class RevisionList(Shape):
    data: list[ListedRevision]


class Revision(Shape):
    revision: str
    descriptor: dict[Literal["kv", "text"], dict[str, Any]]


class AliasList(Shape):
    data: list[Alias]


class RegisteredEngine(Shape):
    boot: str
    revision: str
    lease_s: float


class Heartbeat(Shape):
    lease_s: float
    adapters: dict[str, str | None]
    """Revisions by the names of the adapters that the service knows of."""


class ToldAdapter(Shape):
    model: str
    adapter: str = ""
    revision: str = ""
    reason: str = ""
    """Why it has no revision."""


class ServedAdapters(Shape):
    boot: str
    adapters: list[ToldAdapter]


class LeavingEngine(Shape):
    boot: str
    state: Literal["draining", "gone"]
    conversations: list[str] = Field(default_factory=list)
    """`stay_strict` on a revision that nobody serves any more."""
    conversations_count: int = 0


class RetiredRevision(Shape):
    revision: str
    engines: list[str]
    conversations: list[str] = Field(default_factory=list)
    """`stay_strict` on it."""
    conversations_count: int = 0


class ListedAdapter(Shape):
    model: str
    revision: str | None
    reason: str | None


class ListedEngine(Shape):
    boot: str
    revision: str
    address: str
    role: EngineRole
    state: EngineState
    load: int
    requests: int | None
    """That it has not answered yet, by its own count; null where it does not tell."""
    adapters: list[ListedAdapter]


class EngineList(Shape):
    data: list[ListedEngine]


class ArtifactList(Shape):
    data: list[StoredArtifact]


class ListedRollout(Shape):
    rollout: str
    alias: str
    source: str = Field(alias="from")
    to: str
    back_of: str | None
    state: RolloutState
    resumes_as: RolloutState | None
    step: int
    percent: int
    reason: str
    waiting: str | None
    drained: list[str]
    strategy: Strategy
    started_at: datetime
    since: datetime
    ended_at: datetime | None


class RolloutProgress(ListedRollout):
    warm: Warmth
    troubles: Troubles
    turns_waiting: int
    """Of the alias: they have no attempt under way."""
    turns_waiting_for: dict[WaitsFor, int]
    """How many of them for what."""
    age_s: float | None
    eta_s: float | None


class RolloutList(Shape):
    data: list[ListedRollout]


class RebuildList(Shape):
    data: list[Rebuild]


class ContractTerms(Shape):
    reader: str
    producer: str
    waived: list[str]
    reason: str
    approved_by: str
    approved_ms: int
    ends_ms: int


class Contract(Shape):
    contract: str
    terms: ContractTerms
    revoked_at: datetime | None


class ContractList(Shape):
    data: list[Contract]


class RevokedContract(Shape):
    contract: str
    revoked: Literal[True]
    next: str
    """What is left for people to do."""


class NewKey(Shape):
    key_id: str
    secret: str
    """Shown this once."""
    replaces: str = ""


class KeyList(Shape):
    data: list[KeyRecord]


class RevokedKey(Shape):
    key_id: str
    revoked: Literal[True]


class TenantList(Shape):
    data: list[TenantRecord]


class RetentionOfTenant(Shape):
    tenant: str
    after_days: int | None
    """Null where conversations are kept until somebody erases them."""
    set_at: datetime | None = None
    set_by: str = ""


class ListedView(Shape):
    view: str
    filters: list[str]


class ViewList(Shape):
    data: list[ListedView]


class ViewPage(Shape):
    data: list[dict[str, Any]]
    next_after: str | None


ConversationAudit = dict[str, list[dict[str, Any]]]


class Erased(Shape):
    id: str
    object: Literal["conversation.erased"]
    fresh: bool
    events_emptied: int
    artifacts: list[str]
    forks: list[str]
    inherited_from: str | None


class Lag(Shape):
    waiting: int
    seconds: float


class EventPage(Shape):
    data: list[RecordedEvent]
    next: str
    lag: Lag


class Health(Shape):
    status: Literal["ok"]


class Readiness(Shape):
    status: Literal["ready", "unready"]
    database: str
    broker: bool
    ready_engines: dict[str, int]
    """By alias."""
