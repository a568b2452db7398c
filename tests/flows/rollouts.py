"""Two revisions behind one alias, conversations on the first, and a rollout to the second, moved on by hand."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection

from service import rebuild_run_flow, rollout_advance_flow, rollout_command_flow, turn_flow
from service.domain.events import FLEET, OnUpgrade
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import Drain, Limits, RolloutId, RolloutState, Share, Strategy
from service.store import event_store, fleet, keys, rebuilds, rollouts
from service.store.rollouts import Standing
from tests.flows.fleet import (
    ACME,
    NOW,
    Running,
    accept,
    add_engine,
    completed,
    evidence,
    move_alias,
    new_id,
    pin,
    published,
)

LIMITS = Limits(refusals=0, failed_attempts=1, failed_rebuilds=0)
AT_ONCE = (Share(percent=100, hold_s=0),)


@dataclass(slots=True)
class Scene:
    conn: Connection
    old: RevisionDigest
    new: RevisionDigest
    seconds: float = 0.0

    def start(
        self,
        *shift: Share,
        warm: int = 0,
        pace: int | None = None,
        most_load: int | None = None,
        drain: Drain = Drain.UNPINNED,
        target: RevisionDigest | None = None,
    ) -> RolloutId:
        strategy = Strategy(
            warm=warm,
            warm_tokens_per_s=pace,
            max_engine_load=most_load,
            shift=shift or AT_ONCE,
            drain=drain,
            limits=LIMITS,
        )
        wanted = rollout_command_flow.Wanted(
            alias="production", source=None, target=target or self.new, strategy=strategy, reason="better"
        )
        rollout = RolloutId(new_id("ro_"))
        rollout_command_flow.start(self.conn, wanted, rollout, by="ada", now=self.now)
        return rollout

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    def step(self, rollout: RolloutId, *, later_s: float = 0) -> list[str]:
        self.seconds += later_s
        return rollout_advance_flow.advance(
            self.conn, rollout, now=self.now, new_id=new_id, warm_min_tokens=8
        )

    def at(self, rollout: RolloutId) -> Standing:
        return rollouts.find(self.conn, rollout)

    def where(self, rollout: RolloutId) -> tuple[RolloutState, int]:
        found = self.at(rollout).rollout
        return found.state, found.percent

    def alias(self) -> RevisionDigest:
        found = fleet.find_alias(self.conn, "production")
        assert found is not None
        return found.revision

    def states(self) -> dict[str, str]:
        return {engine.boot: engine.state for engine in fleet.list_engines(self.conn)}

    def chat(self, policy: OnUpgrade | None = None) -> Running:
        """With one answer, and nothing open."""
        first = accept(self.conn, on_upgrade=policy)
        running = Running(conversation=first.conversation, turn=first.turn)
        self.answered(running)
        return running

    def answered(self, running: Running) -> None:
        turn_flow.complete_turn(
            self.conn,
            tenant=ACME,
            conversation=running.conversation,
            refusal=None,
            completed=completed(pin(self.conn, running)),
            now=self.now,
        )

    def asked(self, chat: Running, policy: OnUpgrade | None = None) -> Running:
        """The next turn of it, accepted."""
        turn = accept(self.conn, conversation=chat.conversation, on_upgrade=policy)
        return Running(conversation=chat.conversation, turn=turn.turn)

    def talks_on(self, chat: Running, tokens: int) -> Running:
        """So much of its window is another turn's, answered where it is."""
        asked = self.asked(chat)
        pinned = pin(self.conn, asked)
        before = pinned.head.window_tokens
        said = tuple(range(300, 297 + tokens))
        answer = completed(
            pinned, extends=chat.turn, prompt_delta=said, prompt_tokens=before + len(said), output=(7, 8, 9)
        )
        turn_flow.complete_turn(
            self.conn,
            tenant=ACME,
            conversation=chat.conversation,
            refusal=None,
            completed=answer,
            now=self.now,
        )
        return asked

    def rebuilt(self, rebuild: str, artifact: str, *, tokens: int = 96) -> None:
        """As a worker would."""
        claim = rebuilds.claim(self.conn, rebuild=rebuild, owner="worker", lease_s=60)
        assert claim is not None
        engine = rebuild_run_flow.pick_rebuild_engine(self.conn, claim.revision)
        assert engine is not None
        rebuild_run_flow.record_rebuild(
            self.conn,
            claim=claim,
            evidence=evidence(engine, published=published(engine, artifact, tokens)),
            engine=engine,
            now=self.now,
        )

    def names(self, rollout: RolloutId) -> list[str]:
        return [e.name for e in event_store.read(self.conn, tenant=FLEET, stream=f"rollout/{rollout}")]


def scene(conn: Connection) -> Scene:
    keys.create_tenant(conn, ACME)
    old = add_engine(conn, "a", "boot_a")
    move_alias(conn, old)
    new = add_engine(conn, "b", "boot_b")
    return Scene(conn=conn, old=old, new=new)
