"""A rebuild as a worker runs it: what is to be prefilled, on which engine, and what came of it; one transaction each."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection

from service.domain.artifact import BootId
from service.domain.errors import RebuildFailed, RevisionMismatch
from service.domain.events import KvRebuilt
from service.domain.evidence import Evidence, Published
from service.domain.plan import Engine, pick_prefill
from service.domain.revision import RevisionDigest
from service.store import fleet, heads, rebuilds
from service.turn_log import continue_turn, given, record_published, refused_by


def rebuild_prompt(conn: Connection, claim: rebuilds.Claim) -> tuple[int, ...]:
    """The accepted window: exactly the ids that the next prompt begins with."""
    return heads.load_window(conn, claim.tenant, claim.conversation)


def pick_rebuild_engine(
    conn: Connection, revision: RevisionDigest, *, avoid: Collection[BootId] = ()
) -> Engine | None:
    return pick_prefill([e for e in fleet.live_engines(conn, {revision}) if e.boot not in avoid], revision)


def record_rebuild(
    conn: Connection, *, claim: rebuilds.Claim, evidence: Evidence, engine: Engine, now: datetime
) -> None:
    """What the engine published becomes the turn's KV, and what it refused on the way is recorded with it.

    Raises:
        FenceLost: another worker took over, or the turn does not wait for this any more.
        RebuildFailed: the engine published nothing.
        RevisionMismatch: the engine measured itself as another revision than was asked for.
    """
    published = evidence.published
    if published is None:
        raise RebuildFailed(
            f"Engine {engine.boot} published nothing: {evidence.publish_failure or 'no reason given'}."
        )
    if {evidence.revision, published.revision} != {claim.revision}:
        raise RevisionMismatch(claim.revision, str(evidence.revision))
    if claim.rollout is None:
        _record_rebuilt(conn, claim, evidence, published, now)
    record_published(conn, tenant=claim.tenant, conversation=claim.conversation, published=published, now=now)
    rebuilds.finish(
        conn,
        rebuild=claim.rebuild,
        fence=claim.fence,
        artifact=published.artifact,
        engine_boot=evidence.boot,
        tokens=published.tokens,
        refusal=evidence.refusal,
    )


def _record_rebuilt(
    conn: Connection, claim: rebuilds.Claim, evidence: Evidence, published: Published, now: datetime
) -> None:
    state = heads.load_head(conn, claim.tenant, claim.conversation, for_update=True, turn=claim.turn)
    rebuilt = KvRebuilt(
        turn=claim.turn,
        attempt=claim.attempt,
        rebuild=claim.rebuild,
        artifact=published.artifact,
        revision=published.revision,
        producer=published.producer,
        tokens=published.tokens,
    )
    continue_turn(conn, state, [*given(refused_by(evidence, claim.turn, claim.attempt)), rebuilt], now)


def fail_rebuild(conn: Connection, *, claim: rebuilds.Claim, reason: str) -> None:
    """A turn that waits for it then decodes without it. Raises: FenceLost."""
    rebuilds.fail(conn, rebuild=claim.rebuild, fence=claim.fence, reason=reason)
