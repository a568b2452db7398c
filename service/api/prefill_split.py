"""Has another engine of the same revision prefill an attempt's prompt and publish it; without that it is as exact, only slower."""

import asyncio
from logging import getLogger
from time import monotonic

from service import turn_log
from service.api.attempt import Attempt, Handed
from service.api.prompt import Prompt
from service.api.turn_job import STORAGE_TROUBLE, Job, Tools
from service.domain.artifact import ArtifactId, BootId
from service.domain.errors import EngineFailed, EverturnError, RevisionMismatch
from service.domain.events import KvRefused, Sampling
from service.domain.evidence import Evidence, KvRequest, Published
from service.domain.plan import Engine
from service.engine import client
from service.engine.protocol import GenerateSpec, cache_salt
from service.turn_flow import Split
from service.turn_log import refused_by

log = getLogger(__name__)

ONE_TOKEN = Sampling(max_output_tokens=1, temperature=0.0, top_p=1.0)
"""The least that vLLM generates; it is thrown away."""


class PrefillSplit:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._failed: dict[BootId, float] = {}
        """Engines that failed, and until when no turn waits for them."""

    async def hand_over(self, job: Job, attempt: Attempt, prompt: Prompt) -> Handed | None:
        """What the decoding engine is to be offered then; None where it prefills by itself as planned."""
        split = attempt.split
        if split is None or not self._worth(attempt, split, prompt):
            return None
        job.channel.note(f"prefilling: {len(prompt.token_ids)} tokens on {split.engine.boot}")
        try:
            async with asyncio.timeout(self._tools.settings.split_timeout_s):
                evidence = await self._prefilled(attempt, split.engine, prompt)
                published = _own(attempt, split.engine, prompt, evidence)
                await self._record(job, published)
        except (EverturnError, TimeoutError, *STORAGE_TROUBLE) as error:
            return await self._without(attempt, split.engine, prompt, error)
        self._tools.metrics.prefills_elsewhere.labels("made").inc()
        note = f"{published.tokens} tokens prefilled on {published.producer}"
        refusal = refused_by(evidence, attempt.pinned.turn, attempt.pinned.attempt)
        return Handed(offer=published.artifact, made=True, note=note, refusal=refusal)

    def _worth(self, attempt: Attempt, split: Split, prompt: Prompt) -> bool:
        """By the prompt's own length, which the plan could only guess; not once stored KV has failed this turn."""
        if self._failed.get(split.engine.boot, 0.0) > monotonic() or attempt.turn.refusals:
            return False
        rebuilt = attempt.turn.rebuilt
        at_hand = split.at_hand_tokens if rebuilt is None else rebuilt.tokens
        uncached = len(prompt.token_ids) - (0 if prompt.dropped else at_hand)
        return uncached >= self._tools.settings.split_min_tokens

    async def _prefilled(self, attempt: Attempt, engine: Engine, prompt: Prompt) -> Evidence:
        """Once its KV is in the store, or the engine says why it is not."""
        pinned = attempt.pinned
        spec = GenerateSpec(
            prompt=prompt.token_ids,
            sampling=ONE_TOKEN,
            kv=KvRequest(
                attempt=_id(attempt),
                tenant=attempt.tenant,
                offer=None if prompt.dropped else attempt.offer,
                publish=ArtifactId(self._tools.new_id("kv_")),
                lease_s=attempt.kv_lease_s,
            ),
            revision=pinned.revision,
            boot=engine.boot,
            cache_salt=cache_salt(pinned.revision, attempt.tenant),
            model=engine.model,
        )
        async for _ in client.stream_generate(self._tools.http, engine, spec):
            pass
        while True:
            evidence = await client.evidence(
                self._tools.http, engine, _id(attempt), self._tools.settings.publish_wait_s
            )
            if evidence is None:
                raise EngineFailed(f"Engine {engine.boot} has no record of attempt {_id(attempt)}.")
            if evidence.published is not None or evidence.publish_failure is not None:
                return evidence

    async def _record(self, job: Job, published: Published) -> None:
        """Before it is used: what is known can be erased."""
        await self._tools.database.run(
            lambda conn: turn_log.record_published(
                conn,
                tenant=job.tenant,
                conversation=job.conversation,
                published=published,
                now=self._tools.clock(),
            )
        )

    async def _without(self, attempt: Attempt, engine: Engine, prompt: Prompt, error: Exception) -> Handed:
        why = str(error) or type(error).__name__
        log.warning("attempt %s is prefilled where it decodes: %s", attempt.id, why)
        self._tools.metrics.prefills_elsewhere.labels("failed").inc()
        refusal = await self._refusal(attempt, engine)
        if refusal is None:
            self._failed[engine.boot] = monotonic() + self._tools.settings.engine_lease_s
        note = f"prefilled where it decodes, engine {engine.boot} did not: {why}"
        # What broke while it was loaded there would break here.
        offer = None if refusal is not None or prompt.dropped else attempt.offer
        return Handed(offer=offer, made=False, note=note, refusal=refusal)

    async def _refusal(self, attempt: Attempt, engine: Engine) -> KvRefused | None:
        try:
            evidence = await client.evidence(self._tools.http, engine, _id(attempt), 0)
        except EverturnError:
            return None
        if evidence is None:
            return None
        return refused_by(evidence, attempt.pinned.turn, attempt.pinned.attempt)


def _id(attempt: Attempt) -> str:
    return f"{attempt.id}.prefill"


def _own(attempt: Attempt, engine: Engine, prompt: Prompt, evidence: Evidence) -> Published:
    """Raises:
    EngineFailed, RevisionMismatch: what was published is not this prompt's KV under the attempt's revision.
    """
    wanted, published = attempt.pinned.revision, evidence.published
    if evidence.boot != engine.boot or evidence.revision != wanted:
        raise RevisionMismatch(wanted, f"{evidence.revision} (boot {evidence.boot})")
    if published is None:
        raise EngineFailed(f"Engine {engine.boot} published nothing: {evidence.publish_failure}.")
    if published.revision != wanted:
        raise RevisionMismatch(wanted, f"KV of {published.revision}")
    if evidence.prompt_tokens != len(prompt.token_ids):
        raise EngineFailed(f"Engine {engine.boot} prefilled {evidence.prompt_tokens} tokens, not the prompt.")
    return published
