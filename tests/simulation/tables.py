"""What the simulated database holds, and one transaction on it: undone as a whole, or kept as a whole."""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from service.domain.artifact import BootId
from service.domain.contract import Contract
from service.domain.conversation import Conversation
from service.domain.cuts import Chunk
from service.domain.events import ConversationId, Event, OnUpgrade, TenantId, TurnId
from service.domain.evidence import Published
from service.domain.head import Head
from service.domain.plan import EngineRole, EngineState
from service.domain.revision import Descriptor, RevisionDigest
from service.domain.rollout_events import RolloutId
from service.store.rebuilds import Rebuild
from service.store.rollouts import Standing
from service.store.turns import Run
from tests.simulation import clock

Key = TypeVar("Key")
Value = TypeVar("Value")
Stream = tuple[TenantId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    position: int
    event: Event
    occurred_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    turn: TurnId
    tenant: TenantId
    conversation: ConversationId
    key: str | None
    request_hash: str
    owner: str | None
    lease_end_s: float | None
    opened: int
    run: Run
    deadline_s: float | None = None
    queued_s: float | None = None
    claims: int = 0
    closed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRow:
    boot: BootId
    revision: RevisionDigest
    address: str
    role: EngineRole
    state: EngineState
    lease_end_s: float
    requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildRow:
    seen: Rebuild
    """As `rebuilds.find` gives it."""
    lease_end_s: float | None = None
    claims: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactRow:
    tenant: TenantId
    conversation: ConversationId
    published: Published
    recorded_at: datetime
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasRow:
    revision: RevisionDigest
    on_upgrade: OnUpgrade | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupRow:
    tenant: TenantId
    conversation: ConversationId
    rebuild: str | None = None
    skipped: str | None = None
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Tables:
    events: dict[Stream, tuple[EventRow, ...]] = field(default_factory=dict)
    heads: dict[Stream, Head] = field(default_factory=dict)
    """What `heads.load_head` would fold, kept up as events are appended."""
    whole: dict[Stream, Conversation] = field(default_factory=dict)
    """As `heads`, of all that was said."""
    started: dict[TurnId, Stream] = field(default_factory=dict)
    pinned: dict[tuple[TurnId, int], Stream] = field(default_factory=dict)
    completed: dict[TurnId, Stream] = field(default_factory=dict)
    turns: dict[TurnId, TurnRow] = field(default_factory=dict)
    open_turns: dict[tuple[TenantId, ConversationId], TurnId] = field(default_factory=dict)
    keys: dict[tuple[TenantId, str], TurnId] = field(default_factory=dict)
    chunks: dict[TurnId, tuple[Chunk, ...]] = field(default_factory=dict)
    engines: dict[BootId, EngineRow] = field(default_factory=dict)
    loads: dict[BootId, int] = field(default_factory=dict)
    """Attempts that run on each."""
    descriptors: dict[RevisionDigest, Descriptor] = field(default_factory=dict)
    aliases: dict[str, AliasRow] = field(default_factory=dict)
    contracts: dict[str, Contract] = field(default_factory=dict)
    rebuilds: dict[str, RebuildRow] = field(default_factory=dict)
    active_rebuilds: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """By what is unique among those."""
    unfinished: dict[str, None] = field(default_factory=dict)
    artifacts: dict[tuple[TenantId, ConversationId], tuple[ArtifactRow, ...]] = field(default_factory=dict)
    rollouts: dict[RolloutId, Standing] = field(default_factory=dict)
    warmups: dict[tuple[RolloutId, int], WarmupRow] = field(default_factory=dict)
    refusals: list[tuple[int, RevisionDigest | None, str]] = field(default_factory=list)
    failures: list[tuple[int, RevisionDigest]] = field(default_factory=list)
    """Positions and revisions of attempts that failed."""
    recent: dict[str, dict[Stream, int]] = field(default_factory=dict)
    """By alias: the position of each conversation's last turn."""
    positions: int = 0


class Session:
    """In the place of a `Connection`. Rows are replaced, never changed, so that what was can be put back."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.calls: list[str] = []
        """Functions of flows and store that were called, in order."""
        self.appended: list[Event] = []
        self._undo: list[Callable[[], object]] = []
        self.now_s = clock.monotonic()
        """In a transaction no time passes."""

    @property
    def now(self) -> datetime:
        return clock.EPOCH + timedelta(seconds=self.now_s)

    def set(self, table: MutableMapping[Key, Value], key: Key, value: Value) -> None:
        if key in table:
            before = table[key]
            self._undo.append(lambda: table.__setitem__(key, before))
        else:
            self._undo.append(lambda: table.pop(key, None))
        table[key] = value

    def remove(self, table: MutableMapping[Key, Value], key: Key) -> None:
        if key in table:
            before = table.pop(key)
            self._undo.append(lambda: table.__setitem__(key, before))

    def add(self, table: list[Value], value: Value) -> None:
        table.append(value)
        self._undo.append(table.pop)

    @property
    def has_written(self) -> bool:
        return bool(self._undo)

    def open_rows(self) -> list[TurnRow]:
        return [self.tables.turns[turn] for turn in self.tables.open_turns.values()]

    def shift_load(self, head: Head, turn: TurnId, by: int) -> None:
        """An engine carries an open turn from its pin on, until it is closed or pinned elsewhere."""
        found = head.turns.get(turn)
        if found is not None and found.pinned is not None:
            engine = found.pinned.engine
            self.set(self.tables.loads, engine, self.tables.loads[engine] + by)

    def roll_back(self, to: int = 0) -> None:
        while len(self._undo) > to:
            self._undo.pop()()

    @contextmanager
    def begin_nested(self) -> Iterator[None]:
        before = len(self._undo)
        try:
            yield
        except BaseException:
            self.roll_back(before)
            raise

    def __getattr__(self, name: str) -> Any:
        msg = f"'{name}' of a connection: after {self.calls[-1:]} the product used a statement that the simulated store lacks"
        raise NotImplementedError(msg)
