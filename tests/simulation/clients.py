"""Those who talk, and the one who operates; each keeps a log of what it was told."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from service import rollout_command_flow, rollout_flow
from service.conversation_flow import StoredTurn
from service.domain.errors import EverturnError
from service.domain.events import ConversationId, TurnId
from service.domain.new_items import NOTHING_WANTED, Wants
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import RolloutId
from service.domain.terms import USUAL, OnDisconnect, Terms
from service.domain.turn import TurnState
from tests.simulation import clock
from tests.simulation.actors import Api, Ask, ConnectionLost

if TYPE_CHECKING:
    from tests.simulation.world import World

PATIENCE_S = 240.0
TOOLS = Wants(tools='[{"type":"function","name":"look","parameters":{}}]')
RETRY_S = 0.5
MUCH = " and so on, at some length"


class Outcome(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    outcome: Outcome
    turn: TurnId | None = None
    text: str = ""


@dataclass(slots=True, kw_only=True)
class Exchange:
    ask: Ask
    told: list[Told] = field(default_factory=list)
    """Each time that it was known."""


class Client:
    """Has one conversation; sends each request again, under its key, until it knows what became of it."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._number = number
        self.exchanges: list[Exchange] = []
        self.conversation: ConversationId | None = None
        self.asked_for: Terms | None = None
        """Of each turn; None for what chance gives."""

    async def talk(self) -> None:
        scenario, random = self._world.scenario, self._world.random
        await asyncio.sleep(random.random() * scenario.think_s)
        self.conversation = await self._until_known(Api.create)
        if self.conversation is None:
            return
        for turn in range(scenario.turns):
            ask = Ask(
                conversation=self.conversation,
                key=f"k{self._number}.{turn}",
                text=f"q{self._number}.{turn}" + MUCH * (random.random() < scenario.long),
                on_upgrade=random.choice(scenario.policies),
                revision=self._named(),
                streamed=random.random() < scenario.streamed,
                scored=random.random() < scenario.scored,
                truncate=random.random() < scenario.truncated,
                terms=self._terms(),
                wants=TOOLS if random.random() < scenario.tools else NOTHING_WANTED,
            )
            exchange = Exchange(ask=ask)
            self.exchanges.append(exchange)
            await self._exchange(exchange)
            await asyncio.sleep(random.random() * 2 * scenario.think_s)

    def _named(self) -> RevisionDigest | None:
        random, scenario = self._world.random, self._world.scenario
        if not scenario.named or clock.monotonic() < scenario.rollout_at_s:
            return None
        return self._world.revisions[1] if random.random() < scenario.named else None

    def _terms(self) -> Terms:
        random, scenario = self._world.random, self._world.scenario
        if self.asked_for is not None:
            return self.asked_for
        if random.random() >= scenario.terms:
            return USUAL
        return random.choice(
            (
                Terms(background=True),
                Terms(background=True, deadline_s=8.0),
                Terms(deadline_s=4.0),
                Terms(on_disconnect=OnDisconnect.CANCEL),
            )
        )

    async def _exchange(self, exchange: Exchange) -> None:
        random, scenario = self._world.random, self._world.scenario
        if random.random() < scenario.cancelled:
            self._world.spawn(self._cancel(exchange.ask, random.random() * 2))
        for _ in range(1 + (random.random() < scenario.repeated)):
            stored = await self._until_known(lambda api: _ended(api, exchange.ask))
            if stored is None:
                return
            exchange.told.append(_told(stored))

    async def _cancel(self, ask: Ask, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._until_known(lambda api: api.cancel(ask), tries=3)

    async def _until_known(self, request: Callable[[Api], Awaitable[Any]], tries: int = 10_000) -> Any:
        """None where patience is over."""
        deadline = clock.monotonic() + PATIENCE_S
        for _ in range(tries):
            if clock.monotonic() > deadline:
                break
            api = self._world.any_api()
            if api is not None:
                try:
                    return await api.serve(request(api))  # type: ignore[arg-type]
                except (ConnectionLost, SQLAlchemyError, EverturnError, _NotYet) as error:
                    self._world.say(f"client {self._number}: {type(error).__name__}: {error}")
            await asyncio.sleep(RETRY_S)
        return None


class _NotYet(Exception): ...


async def _ended(api: Api, ask: Ask) -> StoredTurn:
    stored = await api.respond(ask)
    if stored.turn.state not in (TurnState.COMPLETED, TurnState.FAILED):
        raise _NotYet(stored.turn.state)
    return stored


def _told(stored: StoredTurn) -> Told:
    turn = stored.turn
    if turn.completed is not None:
        return Told(outcome=Outcome.ANSWERED, turn=turn.id, text=turn.completed.text)
    return Told(outcome=Outcome.FAILED, turn=turn.id, text=turn.failed.code if turn.failed else "")


class Operator:
    def __init__(self, world: "World") -> None:
        self._world = world

    async def operate(self) -> None:
        scenario = self._world.scenario
        await asyncio.sleep(scenario.rollout_at_s)
        rollout = RolloutId("ro_1")
        wanted = rollout_command_flow.Wanted(
            alias="production",
            source=None,
            target=self._world.revisions[1],
            strategy=scenario.strategy,
            reason="a new model",
        )
        now = clock.utc_now
        await self._do(lambda conn: rollout_command_flow.start(conn, wanted, rollout, by="op", now=now()))
        await asyncio.sleep(scenario.deed_after_s)
        self._world.say(f"operator: {scenario.deed}")
        if scenario.deed == "back":
            back = RolloutId("ro_2")
            await self._do(
                lambda conn: rollout_command_flow.roll_back(
                    conn, rollout, back, by="op", reason="worse", now=now()
                )
            )
        elif scenario.deed == "abort":
            await self._do(
                lambda conn: rollout_command_flow.abort(conn, rollout, by="op", reason="no", now=now())
            )
        elif scenario.deed == "pause":
            await self._pause(rollout)
        elif scenario.deed == "restart":
            self._world.restart_apis()
        else:
            await self._fleet(scenario.deed)

    async def _pause(self, rollout: RolloutId) -> None:
        now = clock.utc_now
        await self._do(
            lambda conn: rollout_command_flow.pause(conn, rollout, by="op", reason="wait", now=now())
        )
        await asyncio.sleep(3)
        await self._do(
            lambda conn: rollout_command_flow.resume(conn, rollout, by="op", reason="go", now=now())
        )

    async def _fleet(self, deed: str) -> None:
        host = self._world.random.choice(list(self._world.network.hosts.values()))
        boot = host.engine.boot if host.engine is not None else None
        if deed == "move":
            await self._do(
                lambda conn: rollout_flow.move_alias(
                    conn,
                    alias="production",
                    revision=self._world.revisions[0],
                    on_upgrade=None,
                    by="op",
                    now=clock.utc_now(),
                    force=True,
                )
            )
        elif deed == "drain" and boot is not None:
            await self._do(lambda conn: rollout_flow.drain_engine(conn, boot, force=True))
        elif deed == "retire" and boot is not None:
            await self._do(lambda conn: rollout_flow.retire_engine(conn, boot, force=True))

    async def _do(self, transaction: Callable[[Any], Any]) -> None:
        """Again where it is not known whether it was done; what is refused then was done, or cannot be."""
        for _ in range(40):
            api = self._world.any_api()
            if api is not None:
                try:
                    await api.serve(api.database.run(transaction))
                except EverturnError as refused:
                    self._world.say(f"operator was refused: {refused}")
                    return
                except (SQLAlchemyError, ConnectionLost) as error:
                    self._world.say(f"operator: {type(error).__name__}")
                else:
                    return
            await asyncio.sleep(RETRY_S)
