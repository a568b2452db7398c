"""One turn's work in this process: what it is run with, and what is known of it so far."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from service.api.attempt import Attempt
from service.api.channel import TurnChannel
from service.api.database import Database
from service.api.metrics import Metrics
from service.api.prompt import Prompt
from service.api.rebuild_wait import Ring
from service.conversation_flow import Accepted, StoredTurn
from service.domain.artifact import BootId
from service.domain.events import ConversationId, ItemId, TenantId, TurnId
from service.domain.head import Head
from service.domain.terms import USUAL, Terms
from service.engine.engine_http import EngineHttp
from service.settings import Settings
from service.turn_flow import NotPinned, Pinned

STORAGE_TROUBLE = (DBAPIError, PoolTimeout)
Failure = tuple[str, str]
"""Code and message."""


class TurnLost(Exception):
    """The turn ends without an answer; the code goes into its turn.failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def unheard(_turn: TurnId) -> None:
    """In the place of a bell: the sweeper rings for what waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What turns are run with, wired once in app.py, and for each turn that a worker runs."""

    database: Database
    http: EngineHttp
    ring: Ring
    settings: Settings
    metrics: Metrics
    owner: str
    clock: Callable[[], datetime]
    new_id: Callable[[str], str]
    ring_turn: Callable[[TurnId], None] = unheard
    """Tells the workers of a turn that waits for one. Raises: Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What came of a request for a turn."""

    accepted: Accepted
    plan: Pinned | NotPinned | None = None
    """Of its first attempt; None for a turn that is not this process's to run, and where it is not known any more."""
    prompt: asyncio.Task[Prompt] | None = None
    """Of that attempt, which its engine was asked for meanwhile."""


@dataclass(slots=True, kw_only=True)
class Job:
    tenant: TenantId
    conversation: ConversationId
    turn: TurnId
    item: ItemId
    channel: TurnChannel
    started_s: float
    terms: Terms = USUAL
    left_s: float | None = None
    """Until its deadline, when it was started here."""
    followed: bool = True
    """To its end, also once it is another's: somebody may be reading it here. A worker that waited for that would be missing where it waits."""
    avoid: dict[BootId, float] = field(default_factory=dict)
    """Engines that failed this turn, and until when they are left alone."""
    plan: str = "none"
    accepted: StoredTurn | None = None
    """As it was recorded, where this process accepted it."""
    plan_made: Pinned | NotPinned | None = None
    """With its acceptance, and not gone by yet."""
    prompt: asyncio.Task[Prompt] | None = None
    """As of `Taken`, until the first attempt has it."""
    answering: bool = False
    attempt: Attempt | None = None
    """The last."""
    head: Head | None = None
    """Where the conversation stood when it began."""
    work: asyncio.Task[None] | None = None
    decided: bool = False
    """An answer is being recorded: whether it is accepted, the database says."""
    ended: bool = False
    """By a client, in the record."""
    lost: bool = False
    """It is another process's by now."""
