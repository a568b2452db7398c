"""Two weeks of a small service, made by its own flows: an upgrade, a turn that stayed, failures, an erasure, keys and limits."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count

from sqlalchemy import Connection

from service import (
    contract_flow,
    conversation_flow,
    erasure_flow,
    rebuild_run_flow,
    rollout_advance_flow,
    rollout_command_flow,
    rollout_flow,
    tenant_flow,
    turn_flow,
    turn_log,
)
from service.domain import rollout_events
from service.domain.adapter import ServedAdapter, effective
from service.domain.artifact import ArtifactId, BootId, MadeBy, RefusalReason
from service.domain.events import (
    AttemptFailed,
    ConversationId,
    ItemId,
    KvRefused,
    KvSource,
    OnUpgrade,
    Role,
    Sampling,
    TenantId,
    TurnCompleted,
    TurnId,
)
from service.domain.evidence import Evidence, Loaded, Published, Refusal
from service.domain.limits import Limits
from service.domain.new_items import NewMessage
from service.domain.plan import Engine, EngineRole
from service.domain.revision import RevisionDigest
from service.domain.rollout_events import Drain, RolloutId, Share, Strategy
from service.fork_flow import ForkPoint
from service.store import event_store, keys, kv_deletions, rebuilds, retention, tenants
from service.turn_flow import Pinned
from service.turn_request import TurnRequest
from tests.engines.simulated import descriptor

BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
FAR_MS = 4_000_000_000_000
CONTRACT_ENDS = datetime(2096, 1, 1, tzinfo=UTC)
"""As all that must hold by the real clock: whether a contract is in force is the database's to say."""
ACME = TenantId("acme")
GLOBEX = TenantId("globex")


@dataclass(slots=True)
class Story:
    conn: Connection
    now: datetime = BEGIN
    numbers: "count[int]" = field(default_factory=lambda: count(1))
    kv: dict[ConversationId, Published] = field(default_factory=dict)
    made: dict[ArtifactId, Published] = field(default_factory=dict)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}{next(self.numbers):04d}"

    def later(self, **passed: float) -> datetime:
        self.now += timedelta(**passed)
        return self.now

    def engine(self, weights: str, boot: str, label: str, version: str = "1") -> RevisionDigest:
        measured = descriptor(weights, version=version)
        rollout_flow.register_revision(self.conn, measured, label=label)
        engine = rollout_flow.NewEngine(
            boot=BootId(boot),
            address="http://127.0.0.1:8101",
            role=EngineRole.BOTH,
            descriptor=measured,
            expected=None,
        )
        return rollout_flow.register_engine(
            self.conn,
            engine,
            allowed_hosts=frozenset({"127.0.0.1"}),
            lease_s=3600,
            now=self.later(minutes=1),
        )

    def adapters(self, weights: str, boot: str, **adapters: str) -> dict[str, RevisionDigest]:
        """Served from here on by that engine, in the place of those before; revisions by name."""
        revisions = {n: effective(descriptor(weights), digest).digest for n, digest in adapters.items()}
        told = [ServedAdapter(model=n, adapter=adapters[n], revision=r) for n, r in revisions.items()]
        rollout_flow.serve_adapters(self.conn, BootId(boot), told, now=self.later(minutes=5))
        return revisions

    def move(self, revision: RevisionDigest, by: str) -> None:
        now = self.later(minutes=1)
        rollout_flow.move_alias(
            self.conn, alias="production", revision=revision, on_upgrade=None, by=by, now=now
        )

    def accept(
        self,
        text: str,
        *,
        tenant: TenantId = ACME,
        chat: ConversationId | None = None,
        policy: OnUpgrade | None = None,
    ) -> tuple[ConversationId, TurnId]:
        request = TurnRequest(
            tenant=tenant,
            tenant_policy=None,
            conversation=chat,
            previous=None,
            alias=None,
            default_alias="production",
            messages=(NewMessage(role=Role.USER, text=text),),
            instructions=None,
            on_upgrade=policy,
            sampling=Sampling(max_output_tokens=64, temperature=0.0, top_p=1.0),
            metadata={},
            idempotency_key=None,
            request_hash="h",
        )
        made = conversation_flow.accept_turn(
            self.conn,
            request,
            owner="api_1",
            lease_s=60,
            now=self.later(minutes=7),
            new_id=self.new_id,
        )
        return made.conversation, made.turn

    def pin(self, tenant: TenantId, chat: ConversationId, turn: TurnId) -> Pinned:
        planned = turn_flow.plan_attempt(
            self.conn,
            tenant=tenant,
            conversation=chat,
            turn=turn,
            avoid=frozenset(),
            rebuild_min_tokens=8,
            now=self.later(seconds=0.25),
            new_id=self.new_id,
        )
        assert isinstance(planned, Pinned)
        return planned

    def published(self, engine: Engine, tokens: int, made_by: MadeBy) -> Published:
        made = Published(
            artifact=ArtifactId(f"{self.new_id('kv_')}{'0' * 8}"),
            revision=engine.revision,
            producer=engine.boot,
            made_by=made_by,
            tokens=tokens,
            blocks=tokens // 4,
            bytes=tokens * 1024,
            expires_ms=FAR_MS,
            tip="ab" * 32,
        )
        self.made[made.artifact] = made
        return made

    def rebuild(self, chat: ConversationId, pinned: Pinned) -> Published:
        """By a worker that came after another which died."""
        assert pinned.rebuild is not None
        rebuilds.claim(self.conn, rebuild=pinned.rebuild, owner="worker-1:17", lease_s=-1)
        claim = rebuilds.claim(self.conn, rebuild=pinned.rebuild, owner="worker-2:23", lease_s=60)
        assert claim is not None
        old = self.kv[chat]
        made = self.published(
            pinned.engine, len(rebuild_run_flow.rebuild_prompt(self.conn, claim)), MadeBy.PREFILL
        )
        refusal = Refusal(
            artifact=old.artifact,
            reason=RefusalReason.REVISION_MISMATCH,
            detail="made under another revision",
            differing=("kv.weights",),
            artifact_revision=old.revision,
            artifact_producer=old.producer,
        )
        evidence = Evidence(
            attempt=f"{claim.rebuild}.{claim.fence}",
            boot=pinned.engine.boot,
            revision=pinned.engine.revision,
            prompt_tokens=claim.tokens_total,
            refusal=refusal,
            published=made,
        )
        rebuild_run_flow.record_rebuild(
            self.conn, claim=claim, evidence=evidence, engine=pinned.engine, now=self.later(seconds=1.5)
        )
        return made

    def answer(self, tenant: TenantId, chat: ConversationId, turn: TurnId, pinned: Pinned, text: str) -> None:
        state = event_store.load_conversation(self.conn, tenant, chat)
        source, read = KvSource.NONE, None
        if pinned.rebuild is not None:
            source, read = KvSource.REBUILT, self.rebuild(chat, pinned)
        elif pinned.pinned.offer is not None:
            source, read = KvSource.REUSED, self.kv[chat]
        delta = tuple(range(100, 112)) if state.window else tuple(range(1, 33))
        output = tuple(range(200, 200 + len(text.split())))
        window = len(state.window) + len(delta)
        kept = self.published(pinned.engine, window + len(output), MadeBy.DECODE)
        completed = TurnCompleted(
            turn=turn,
            attempt=pinned.pinned.attempt,
            item=ItemId(self.new_id("msg_")),
            text=text,
            finish_reason="stop",
            extends=state.last.turn if state.last else None,
            prompt_delta=delta,
            output=output,
            prompt_tokens=window,
            local_tokens=0,
            kv_source=source,
            kv_reason=pinned.pinned.reason,
            requested_revision=pinned.pinned.revision,
            engine=pinned.engine.boot,
            engine_revision=pinned.engine.revision,
            loaded=None
            if read is None
            else Loaded(
                artifact=read.artifact,
                revision=read.revision,
                producer=read.producer,
                tokens=read.tokens,
                bytes=read.bytes,
                seconds=0.02,
                contract=pinned.pinned.contract,
            ),
            published=kept.artifact,
        )
        turn_flow.complete_turn(
            self.conn,
            tenant=tenant,
            conversation=chat,
            refusal=None,
            completed=completed,
            now=self.later(seconds=2),
        )
        turn_log.record_published(
            self.conn, tenant=tenant, conversation=chat, published=kept, now=self.later(seconds=0.5)
        )
        self.kv[chat] = kept

    def turn(
        self,
        text: str,
        *,
        tenant: TenantId = ACME,
        chat: ConversationId | None = None,
        policy: OnUpgrade | None = None,
    ) -> ConversationId:
        chat, turn = self.accept(text, tenant=tenant, chat=chat, policy=policy)
        self.answer(tenant, chat, turn, self.pin(tenant, chat, turn), f"an answer to {text}")
        return chat

    def fork(self, chat: ConversationId, *, after: int, text: str) -> ConversationId:
        """After its turn of that number; the fork's first answer is from the KV that they share."""
        turn = list(event_store.load_conversation(self.conn, ACME, chat).turns)[after - 1]
        fork = conversation_flow.fork_conversation(
            self.conn,
            tenant=ACME,
            point=ForkPoint(conversation=chat, after=turn),
            alias=None,
            on_upgrade=None,
            metadata=None,
            messages=(),
            now=self.later(minutes=3),
            new_id=self.new_id,
        )
        _, turn = self.accept(text, chat=fork)
        pinned = self.pin(ACME, fork, turn)
        assert pinned.pinned.offer is not None
        shared = pinned.head.ancestors[0].tokens
        self.kv[fork] = replace(self.made[pinned.pinned.offer], tokens=shared // 4 * 4)
        self.answer(ACME, fork, turn, pinned, f"an answer to {text}")
        return fork

    def lost_attempt(self, tenant: TenantId, chat: ConversationId, turn: TurnId) -> None:
        """The stored block proved broken while it was loaded."""
        pinned = self.pin(tenant, chat, turn)
        attempt = pinned.pinned.attempt
        broken = Refusal(
            artifact=self.kv[chat].artifact,
            reason=RefusalReason.CHECKSUM_MISMATCH,
            detail="block 2 is not what its header says",
            artifact_revision=self.kv[chat].revision,
            artifact_producer=self.kv[chat].producer,
        )
        turn_flow.fail_attempt(
            self.conn,
            tenant=tenant,
            conversation=chat,
            refusal=KvRefused(
                turn=turn,
                attempt=attempt,
                engine=pinned.engine.boot,
                engine_revision=pinned.engine.revision,
                refusal=broken,
            ),
            failed=AttemptFailed(
                turn=turn, attempt=attempt, reason="the KV load failed verification", partial_text=""
            ),
            now=self.later(seconds=1),
        )


def tell(conn: Connection) -> None:
    """All of it, in one transaction; ids and times are the same every time."""
    story = Story(conn)
    for tenant in (ACME, GLOBEX):
        keys.create_tenant(conn, tenant)
    _give_keys(story)
    v12 = story.engine("12" * 32, "boot_a1", "v12")
    story.move(v12, "alice")
    capital = story.turn("what is the capital of France")
    story.turn("and of Italy", chat=capital)
    tides = story.turn("why are there tides", tenant=GLOBEX)
    gone = story.turn("my name is Jane Doe")
    story.later(days=6)
    v13 = story.engine("13" * 32, "boot_b1", "v13")
    story.move(v13, "bob")
    story.turn("and of Spain", chat=capital)
    for place in ("Portugal", "Norway", "Chile", "Peru"):
        story.turn(f"and of {place}", chat=capital)
    story.turn("and why twice a day", tenant=GLOBEX, chat=tides, policy=OnUpgrade.STAY)
    _, turn = story.accept("and the moon", tenant=GLOBEX, chat=tides)
    story.answer(GLOBEX, tides, turn, story.pin(GLOBEX, tides, turn), "an answer to and the moon")
    _, turn = story.accept("and the sun", tenant=GLOBEX, chat=tides)
    story.lost_attempt(GLOBEX, tides, turn)
    story.answer(GLOBEX, tides, turn, story.pin(GLOBEX, tides, turn), "an answer to and the sun")
    _, turn = story.accept("and on Mars", tenant=GLOBEX, chat=tides)
    turn_flow.fail_turn(
        conn,
        tenant=GLOBEX,
        conversation=tides,
        turn=turn,
        code="no_engine",
        message="The turn waited 120 s for an engine.",
        now=story.later(seconds=120),
    )
    erasure_flow.erase_conversation(
        conn,
        tenant=ACME,
        conversation=gone,
        by="carol",
        reason="request of the end user",
        now=story.later(hours=1),
    )
    story.later(days=1)
    story.move(v12, "alice")
    served = story.adapters("12" * 32, "boot_a1", legal="1e" * 32, style="5e" * 32)
    story.move(served["legal"], "alice")
    story.turn("what is a lease")
    story.move(v12, "alice")
    story.adapters("12" * 32, "boot_a1", style="5e" * 32)
    story.fork(story.fork(capital, after=2, text="and of Malta"), after=3, text="and of Gozo")
    retention.set_retention(conn, GLOBEX, after_days=90, by="carol", now=story.later(minutes=1))
    _delete_kv(conn)
    _roll_back(story, v13)
    _read_under_a_contract(story, v12)
    for policy in (OnUpgrade.STAY, None):
        tenant_flow.set_policy(conn, GLOBEX, policy, by="alice", now=story.later(hours=1))


def _roll_back(story: Story, target: RevisionDigest) -> None:
    """Half of the conversations went, and came back."""
    strategy = Strategy(
        warm=0,
        warm_tokens_per_s=None,
        shift=(Share(percent=50, hold_s=3600), Share(percent=100, hold_s=0)),
        drain=Drain.UNPINNED,
        limits=rollout_events.Limits(refusals=5, failed_attempts=5, failed_rebuilds=5),
    )
    wanted = rollout_command_flow.Wanted(
        alias="production", source=None, target=target, strategy=strategy, reason="better at sums"
    )
    rollout, back = RolloutId("ro_v13_again"), RolloutId("ro_v12_back")
    rollout_command_flow.start(story.conn, wanted, rollout, by="bob", now=story.later(minutes=1))
    _step(story, rollout)
    for number in range(3):
        story.turn(f"what is {number} and {number}")
    rollout_command_flow.roll_back(
        story.conn, rollout, back, by="alice", reason="worse at sums", now=story.later(minutes=1)
    )
    _step(story, back)


def _step(story: Story, rollout: RolloutId) -> None:
    rollout_advance_flow.advance(
        story.conn,
        rollout,
        now=story.later(seconds=1),
        new_id=story.new_id,
        warm_min_tokens=8,
    )


def _read_under_a_contract(story: Story, producer: RevisionDigest) -> None:
    """A newer engine on the same weights: somebody has tried its answers, and vouches for them."""
    chat = story.turn("what is a fjord")
    reader = story.engine("12" * 32, "boot_c1", "v12 on a newer engine", version="2")
    contract_flow.approve_contract(
        story.conn,
        reader=reader,
        producer=producer,
        waived=["engine_version"],
        reason="equal answers to 500 prompts",
        by="dora",
        ends_at=CONTRACT_ENDS,
        now=story.later(minutes=1),
    )
    story.move(reader, "alice")
    story.turn("and a bight", chat=chat)


def _delete_kv(conn: Connection) -> None:
    """Of what was erased: some of it is not there any more, some cannot go yet."""
    [first, *_] = kv_deletions.claim(conn, store="/kv", limit=9)
    failed = {first.artifact: kv_deletions.Failure(why="blocks/\u2026: Permission denied")}
    kv_deletions.settle(conn, gone=[], missing=[], failed=failed)


def _give_keys(story: Story) -> None:
    scope = keys.Scope
    for number, (name, tenant, kind) in enumerate(
        [("acme app", ACME, scope.TENANT), ("ops", None, scope.OPERATOR), ("audit 2026", None, scope.AUDITOR)]
    ):
        keys.create_key(
            story.conn,
            tenant=tenant,
            scope=kind,
            secret=f"history {number}",
            now=story.later(minutes=1),
            by="install",
            label=name,
        )
    [old] = [key.key_id for key in keys.list_keys(story.conn) if key.label == "ops"]
    keys.rotate_key(story.conn, old, secret="history 9", grace_s=0, now=story.later(minutes=1), by="alice")
    tenants.set_limits(
        story.conn, GLOBEX, Limits(concurrent_turns=8, tokens=100_000), by="alice", now=story.later(minutes=1)
    )
