"""Has an engine prefill the beginning of a history, and waits until its KV is published."""

import logging
import time
from dataclasses import dataclass

from service.domain.artifact import ArtifactId
from service.domain.errors import EngineFailed, RebuildFailed
from service.domain.events import Sampling, TenantId
from service.domain.evidence import Evidence, KvRequest, Refusal
from service.domain.plan import Engine
from service.domain.revision import RevisionDigest
from service.engine.client import prefill, prefill_evidence
from service.engine.protocol import GenerateSpec, cache_salt
from service.store.new_ids import new_id
from workers.pool_process import PoolProcess

log = logging.getLogger(__name__)

EVIDENCE_WAIT_S = 10.0
PARTIAL_LEASE_S = 3600
"""What is published on the way is of use until the next chunk is, or until somebody takes the rebuild over."""
ONE_TOKEN = Sampling(max_output_tokens=1, temperature=0.0, top_p=1.0)
"""The least that vLLM generates; it is thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    attempt: str
    tenant: TenantId
    revision: RevisionDigest
    engine: Engine
    tokens: tuple[int, ...]
    offer: ArtifactId | None
    whole: bool
    """Whether these are all tokens of the history."""
    until: float
    """By when it has to be published; monotonic seconds."""


def prefill_chunk(process: PoolProcess, wanted: Prefill) -> Evidence:
    """Raises:
    EngineFailed, RevisionMismatch: and another engine, or another offer, may do.
    RebuildFailed: it was not published in time.
    """
    lease_s = process.settings.kv_lease_s
    kv = KvRequest(
        attempt=wanted.attempt,
        tenant=wanted.tenant,
        offer=wanted.offer,
        publish=ArtifactId(new_id("kv_")),
        lease_s=lease_s if wanted.whole else min(lease_s, PARTIAL_LEASE_S),
    )
    spec = GenerateSpec(
        prompt=wanted.tokens,
        sampling=ONE_TOKEN,
        kv=kv,
        revision=wanted.revision,
        boot=wanted.engine.boot,
        cache_salt=cache_salt(wanted.revision, wanted.tenant),
        model=wanted.engine.model,
    )
    prefill(process.http, wanted.engine.address, spec)
    return _published(process, wanted)


def refusal_of(process: PoolProcess, wanted: Prefill) -> Refusal | None:
    """What the engine refused to load, if it can still say so."""
    try:
        evidence = prefill_evidence(process.http, wanted.engine.address, wanted.attempt, 0)
    except EngineFailed as error:
        log.warning("rebuild %s: no evidence: %s", wanted.attempt, error)
        return None
    return None if evidence is None else evidence.refusal


def _published(process: PoolProcess, wanted: Prefill) -> Evidence:
    """An answer of the engine is not yet a publication: its blocks are written after it."""
    while time.monotonic() < wanted.until:
        evidence = prefill_evidence(process.http, wanted.engine.address, wanted.attempt, EVIDENCE_WAIT_S)
        if evidence is None:
            raise EngineFailed(f"Engine {wanted.engine.boot} knows nothing of attempt {wanted.attempt}.")
        if evidence.published is not None or evidence.publish_failure is not None:
            return evidence
    raise RebuildFailed(f"engine {wanted.engine.boot} had not published in time")
