"""A rebuild as a worker runs it: what is to be prefilled, on which engine, and what came of it; one transaction each."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from service.domain.artifact import BootId
from service.domain.errors import Internal, RebuildFailed, RevisionMismatch
from service.domain.events import KvRebuilt
from service.domain.evidence import Evidence, Published
from service.domain.plan import Engine, pick_prefill
from service.domain.revision import RevisionDigest
from service.domain.turn import TurnEvent
from service.store import (
    artifacts,
    event_store,
    fleet,
    heads,
    kv_deletions,
    rebuild_progress,
    rebuilds,
    rollout_facts,
    timeline,
)
from service.store.rebuilds import Claim
from service.turn_log import continue_turn, given, record_published, refused_by


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    claim: Claim
    prompt: tuple[int, ...]
    engine: Engine
    at_hand: int
    """Tokens of what a warm-up was offered on its own revision: nothing is to be done for them."""
    pace: int | None
    """Tokens a second that the rollout allows which it warms for; None where as many as there can be."""


def begin_rebuild(
    conn: Connection, *, rebuild: str, owner: str, lease_s: float, most_claims: int
) -> Begun | None:
    """Claimed, with all that its first prefill needs: a turn waits for each round trip. None where there is nothing to do.

    A warm-up whose history its client has deleted or erased meanwhile ends as superseded: it is nobody's fault.

    Raises:
        RebuildFailed: there is nothing to prefill, nobody to do it, or more than `most_claims` in a row came to nothing.
    """
    claim = rebuilds.claim(conn, rebuild=rebuild, owner=owner, lease_s=lease_s)
    if claim is None:
        return None
    if claim.claims > most_claims:
        raise RebuildFailed(f"given up: {most_claims} workers claimed it, and none of them came back")
    try:
        prompt = rebuild_prompt(conn, claim)
    except RebuildFailed as nothing:
        if claim.rollout is None:
            raise
        rebuild_progress.let_go(conn, claim, str(nothing))
        return None
    engine = pick_rebuild_engine(conn, claim.revision, rebuild=rebuild)
    if engine is None:
        raise RebuildFailed(f"no ready engine for prefill serves {claim.revision}")
    pace = None if claim.rollout is None else rollout_facts.pace(conn, claim.rollout)
    return Begun(claim=claim, prompt=prompt, engine=engine, at_hand=_at_hand(conn, claim), pace=pace)


def give_up(conn: Connection, *, rebuild: str, owner: str, lease_s: float, reason: str) -> None:
    """Of one that could not be begun, and so is nobody's yet."""
    claim = rebuilds.claim(conn, rebuild=rebuild, owner=owner, lease_s=lease_s)
    if claim is not None:
        fail_rebuild(conn, claim=claim, reason=reason)


def rebuild_prompt(conn: Connection, claim: Claim) -> tuple[int, ...]:
    """The accepted window: exactly the ids that the next prompt begins with.

    Raises: RebuildFailed: it is empty.
    """
    window = heads.load_window(conn, claim.tenant, claim.conversation)
    if not window:
        raise RebuildFailed("nothing of the history is left to be prefilled as it was")
    return window


def block_tokens(conn: Connection, revision: RevisionDigest) -> int:
    """Tokens in a block of KV under that revision."""
    descriptor = fleet.find_descriptor(conn, revision)
    if descriptor is None:
        raise Internal(f"Revision {revision} is to be rebuilt for, and is not registered.")
    return descriptor.kv.block_size


def pick_rebuild_engine(
    conn: Connection, revision: RevisionDigest, *, rebuild: str = "", avoid: Collection[BootId] = ()
) -> Engine | None:
    able = [e for e in fleet.live_engines(conn, {revision}) if e.boot not in avoid]
    return pick_prefill(able, revision, rebuild=rebuild)


def record_chunk(
    conn: Connection, *, claim: Claim, evidence: Evidence, engine: Engine, now: datetime, hand_over: bool
) -> Claim | None:
    """What there is of it so far is noted, for whoever goes on; what was refused on the way is recorded.

    With `hand_over` somebody else is to go on, where no turn waits for it.

    Returns it as it is wanted now, which may be by a turn that has taken it over; None where it is back in the queue.

    Raises:
        FenceLost, RebuildFailed, RevisionMismatch: as `record_rebuild` does.
    """
    published = _published(claim, evidence, engine)
    held = _held(conn, claim)
    _tell_turn(conn, held, evidence, (), now)
    moved = rebuild_progress.move(
        conn,
        held,
        artifact=published.artifact,
        engine_boot=evidence.boot,
        tokens=published.tokens,
        refusal=evidence.refusal,
    )
    return None if rebuild_progress.give_way(conn, moved, anyway=hand_over) else moved


def go_on(conn: Connection, claim: Claim) -> Claim | None:
    """As it is wanted now, between two chunks; None where a turn waits for another rebuild, and this one is back in the queue.

    Raises: FenceLost.
    """
    held = rebuild_progress.hold(conn, claim)
    return None if rebuild_progress.give_way(conn, held) else held


def record_rebuild(
    conn: Connection, *, claim: Claim, evidence: Evidence, engine: Engine, now: datetime
) -> Claim | None:
    """What the engine published becomes the turn's KV, and what it refused on the way is recorded with it.

    Returns None once it is done; else it as it is wanted now, by a turn with more history than was prefilled.

    Raises:
        FenceLost: another worker took over, or the turn does not wait for this any more.
        RebuildFailed: the engine published nothing.
        RevisionMismatch: the engine measured itself as another revision than was asked for.
    """
    published = _published(claim, evidence, engine)
    held = _held(conn, claim)
    if held.tokens_total > max(evidence.prompt_tokens, claim.tokens_total):
        return record_chunk(conn, claim=claim, evidence=evidence, engine=engine, now=now, hand_over=False)
    rebuilt = KvRebuilt(
        turn=held.turn,
        attempt=held.attempt,
        rebuild=held.rebuild,
        artifact=published.artifact,
        revision=published.revision,
        producer=published.producer,
        tokens=published.tokens,
    )
    _tell_turn(conn, held, evidence, (rebuilt,), now)
    record_published(conn, tenant=held.tenant, conversation=held.conversation, published=published, now=now)
    rebuilds.finish(
        conn,
        rebuild=held.rebuild,
        fence=held.fence,
        artifact=published.artifact,
        engine_boot=evidence.boot,
        tokens=published.tokens,
        refusal=evidence.refusal,
    )
    return None


def note_unclaimed(conn: Connection, claim: Claim, published: Published, now: datetime) -> None:
    """Of a rebuild whose fence was lost: what its engine has published all the same is found by an erasure, also one that was before."""
    rebuild_progress.remember(conn, claim.rebuild, published.artifact)
    if timeline.is_erased(conn, claim.tenant, claim.conversation):
        kv_deletions.ask(
            conn,
            tenant=claim.tenant,
            conversation=claim.conversation,
            artifacts=[published.artifact],
            now=now,
        )


def fail_rebuild(conn: Connection, *, claim: Claim, reason: str) -> None:
    """A turn that waits for it then decodes without it. Raises: FenceLost."""
    rebuilds.fail(conn, rebuild=claim.rebuild, fence=claim.fence, reason=reason)


def _at_hand(conn: Connection, claim: Claim) -> int:
    """What a turn waits for is offered KV of another revision, if any: not worth a look."""
    if claim.rollout is None or claim.offer is None:
        return 0
    return artifacts.tokens_of(conn, claim.tenant, claim.conversation, claim.offer, under=claim.revision)


def _published(claim: Claim, evidence: Evidence, engine: Engine) -> Published:
    published, loaded = evidence.published, evidence.loaded
    if published is None:
        raise RebuildFailed(
            f"Engine {engine.boot} published nothing: {evidence.publish_failure or 'no reason given'}."
        )
    made_under = {evidence.revision, published.revision, *([] if loaded is None else [loaded.revision])}
    if made_under != {claim.revision}:
        raise RevisionMismatch(
            claim.revision, ", ".join(str(other) for other in made_under - {claim.revision})
        )
    return published


def _held(conn: Connection, claim: Claim) -> Claim:
    # The stream's lock first and the row's then, as whoever pins or completes a turn does.
    event_store.lock_stream(conn, claim.tenant, claim.conversation)
    return rebuild_progress.hold(conn, claim)


def _tell_turn(
    conn: Connection, held: Claim, evidence: Evidence, then: tuple[TurnEvent, ...], now: datetime
) -> None:
    """Nothing where no turn waits."""
    if held.rollout is not None:
        return
    events = (*given(refused_by(evidence, held.turn, held.attempt)), *then)
    if events:
        state = heads.load_head(conn, held.tenant, held.conversation, turn=held.turn)
        continue_turn(conn, state, events, now)
