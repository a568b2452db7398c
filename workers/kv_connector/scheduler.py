"""The connector inside the scheduler: decides on the offered artifact before a token is promised, and follows each request to its end.

A request's life here: arrived (its block hashes rooted) -> matched (decide once) -> allocated (plan the load) -> learned (loaded or refused)
-> finished (plan the save, or say why not) -> learned (published or failed) -> forgotten.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from service.domain.adapter import NO_ADAPTER
from service.domain.artifact import (
    Admitted,
    BootId,
    Manifest,
    RefusalReason,
    Refused,
    Tensor,
    admit,
    parse_artifact_id,
)
from service.domain.contract import Contract
from service.domain.errors import InvalidInput
from service.domain.evidence import Evidence, KvRequest, Loaded, Published, Refusal
from service.domain.revision import Descriptor
from workers.kv_connector.adapters import Adapters
from workers.kv_connector.contract_folder import ContractFolder
from workers.kv_connector.counters import Count, Counters
from workers.kv_connector.hash_root import HashRoot
from workers.kv_connector.jobs import NO_JOBS, WEIGHTS_CHANGED, Jobs, LoadJob, Outcomes, SaveJob, Waiver
from workers.kv_connector.offers import read_offer
from workers.kv_connector.reports import Reports
from workers.kv_connector.save_planning import Dropped, SavePlanner
from workers.kv_connector.store import BlockStore
from workers.kv_connector.tracked import Tracked, apart_from_others, unsupported_request

logger = logging.getLogger("vllm.everturn")


class SchedulerSide:
    def __init__(
        self,
        *,
        store: BlockStore,
        reports: Reports,
        root: HashRoot,
        counters: Counters,
        boot: BootId,
        unsupported: str | None,
        kv_blocks: int,
        contracts: ContractFolder | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        self._store = store
        self._reports = reports
        self._root = root
        self._counters = counters
        self._boot = boot
        self._unsupported = unsupported
        self._contracts = contracts or ContractFolder(None)
        self._adapters = adapters or Adapters(None)
        self._own: Descriptor | None = None
        self._unknown = "this engine has not measured itself"
        self._look_at_weights: Callable[[], int] = lambda: 0
        self._weight_changes = 0
        self._tensors: tuple[Tensor, ...] = ()
        self._tracked: dict[str, Tracked] = {}
        self._loads: list[LoadJob] = []
        self._saves: list[SaveJob] = []
        self._lost: list[str] = []
        self._planner = SavePlanner(unsupported=unsupported, kv_blocks=kv_blocks)
        self._stalled = False

    def identify(self, own: Descriptor, tensors: tuple[Tensor, ...]) -> None:
        self._own, self._tensors = own, tensors
        self._root.identify(own.digest)

    def watch(self, weight_changes: Callable[[], int]) -> None:
        """How often the weights were changed in place: asked before a request is looked up anywhere, and when it has ended.

        Where that fails the request shares KV with none, and publishes nothing.
        """
        self._look_at_weights = weight_changes

    def arrived(self, request: Any) -> None:
        """Every request, also one that does not speak to us."""
        try:
            self._heed(self._look_at_weights())
            tracked = self._track(request)
            apart = apart_from_others(request, tracked, self._computed_under(request)[0])
        except Exception:
            self._root.fold_apart(request)
            raise
        self._root.fold_into(request, None if tracked is None else tracked.kv.tenant, apart)
        self._counters.add(Count.REQUESTS)

    def matched(self, request: Any, local_tokens: int) -> int:
        """Tokens beyond `local_tokens` that the store will supply; decided once, repeatable."""
        tracked = self._track(request)
        if tracked is None:
            return 0
        if not tracked.decided:
            tracked.decided = True
            tracked.evidence = replace(tracked.evidence, local_tokens=local_tokens)
            self._decide(request, tracked)
            self._report(tracked)
        elif tracked.evidence.local_tokens != local_tokens and not tracked.load_refused:
            tracked.evidence = replace(tracked.evidence, local_tokens=local_tokens)
        if tracked.admitted is None:
            return 0
        return max(tracked.admitted.tokens - local_tokens, 0)

    def allocated(self, request: Any, block_ids: Sequence[int], tokens: int) -> None:
        """`tokens` were promised: whatever happens here, the request waits until it is told."""
        tracked = self._tracked.get(request.request_id)
        if tracked is None or tracked.admitted is None or tracked.manifest is None:
            self._lost.append(request.request_id)
            return
        manifest, last = tracked.manifest, tracked.admitted.blocks
        first = last - tokens // manifest.block_size
        contract = tracked.admitted.contract
        tracked.loading, tracked.loaded_from_block = True, first
        self._loads.append(
            LoadJob(
                request_id=request.request_id,
                tenant=tracked.kv.tenant,
                artifact=manifest.artifact,
                revision=manifest.revision,
                producer=manifest.producer,
                expires_ms=manifest.expires_ms,
                blocks=manifest.blocks[first:last],
                block_ids=tuple(block_ids[first:last]),
                adapter=tracked.own.kv.adapter if tracked.own else NO_ADAPTER,
                waiver=Waiver(contract=contract, producer=manifest.descriptor) if contract else None,
            )
        )

    def finished(self, request: Any, block_ids: Sequence[int]) -> bool:
        """Whether the engine must keep the request's blocks until they are saved."""
        tracked = self._track(request)
        if tracked is None:
            return False
        self._heed(self._look_at_weights())
        tracked.ended = True
        if not tracked.loading and tracked.evidence.loaded is None and tracked.evidence.refusal is None:
            self._counters.add(Count.MISSES)
        if tracked.kv.publish is not None:
            # Asked once more: what it began under must be what it ends under.
            planned = self._planner.plan(
                request,
                tracked,
                block_ids,
                under=self._computed_under(request),
                stalled=self._stalled,
            )
            if isinstance(planned, SaveJob):
                tracked.saving = True
                self._saves.append(planned)
            elif isinstance(planned, Dropped):
                self._counters.add(Count.PUBLISH_DROPPED)
                self._not_published(tracked, planned.why)
            else:
                self._not_published(tracked, planned)
            self._report(tracked)
        self._forget_if_settled(request.request_id, tracked)
        return tracked.saving

    def jobs(self) -> Jobs:
        if not (self._loads or self._saves or self._lost):
            return NO_JOBS
        jobs = Jobs(loads=tuple(self._loads), saves=tuple(self._saves), lost=tuple(self._lost))
        self._loads, self._saves, self._lost = [], [], []
        return jobs

    def learned(self, outcomes: Outcomes) -> None:
        self._stalled = outcomes.stalled
        for request_id, loaded in outcomes.loaded.items():
            self._learned_load(request_id, loaded)
        for request_id, saved in outcomes.saved.items():
            self._learned_save(request_id, saved)

    def _heed(self, weight_changes: int) -> None:
        """Weights changed in place: from now on nobody knows what this engine is, and it computes on nothing of before."""
        if weight_changes <= self._weight_changes:
            return
        self._weight_changes = weight_changes
        self._own, self._unknown = None, WEIGHTS_CHANGED
        self._root.disown(weight_changes)
        self._counters.add(Count.WEIGHT_CHANGES)
        for tracked in self._tracked.values():
            self._disown(tracked)
        try:
            self._reports.write_identity({"boot": self._boot, "revision": None, "error": WEIGHTS_CHANGED})
        except OSError:
            logger.exception("Everturn could not tell its front that the revision is unknown")

    def _disown(self, tracked: Tracked) -> None:
        """What it is offered and has not begun to load; the worker side refuses what it has."""
        tracked.own, tracked.unknown = None, WEIGHTS_CHANGED
        tracked.evidence = replace(tracked.evidence, revision=None)
        if tracked.admitted is not None and not tracked.loading and tracked.evidence.loaded is None:
            tracked.admitted = None
            self._refuse(tracked, Refused(reason=RefusalReason.REVISION_UNKNOWN, detail=WEIGHTS_CHANGED))
        self._report(tracked)

    def broke(self, request: Any, error: Exception, *, waiting_for_load: bool = False) -> None:
        """After a hook failed on this request: refuse what it was offered, publish nothing, and say so."""
        if waiting_for_load:
            self._lost.append(request.request_id)
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            return
        words = f"{type(error).__name__}: {error}"
        tracked.admitted, tracked.decided, tracked.load_refused = None, True, True
        if tracked.kv.offer is not None and tracked.evidence.loaded is None:
            self._refuse(tracked, Refused(reason=RefusalReason.INTERNAL_ERROR, detail=words))
        if tracked.ended and tracked.kv.publish is not None:
            self._withdraw_save(request.request_id, tracked)
            self._not_published(tracked, words)
        self._report(tracked)
        self._forget_if_settled(request.request_id, tracked)

    def _withdraw_save(self, request_id: str, tracked: Tracked) -> None:
        """Its blocks go back to the engine now, so nothing may read them any more."""
        self._saves = [job for job in self._saves if job.request_id != request_id]
        tracked.saving = False
        self._planner.settled(request_id)

    def _track(self, request: Any) -> Tracked | None:
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            return tracked
        try:
            kv = KvRequest.from_params(request.kv_transfer_params)
        except InvalidInput as error:
            logger.warning("Everturn ignores request %s: %s", request.request_id, error)
            return None
        if kv is None:
            return None
        own, unknown = self._computed_under(request)
        evidence = Evidence(
            attempt=kv.attempt,
            boot=self._boot,
            revision=self._adapters.digest(own) if own else None,
            prompt_tokens=request.num_prompt_tokens,
        )
        tracked = Tracked(kv=kv, evidence=evidence, own=own, unknown=unknown)
        return self._tracked.setdefault(request.request_id, tracked)

    def _computed_under(self, request: Any) -> tuple[Descriptor | None, str]:
        """The engine's own descriptor with the request's adapter in it, or None and why."""
        if self._own is None:
            return None, self._unknown
        try:
            return self._adapters.of(self._own, self._adapters.measure(request.lora_request)), ""
        except InvalidInput as error:
            return None, str(error)

    def _decide(self, request: Any, tracked: Tracked) -> None:
        if tracked.kv.offer is None:
            return
        verdict = self._verdict(request, tracked)
        if isinstance(verdict, Admitted):
            tracked.admitted = verdict
        else:
            self._refuse(tracked, verdict)

    def _verdict(self, request: Any, tracked: Tracked) -> Admitted | Refused:
        artifact = parse_artifact_id(tracked.kv.offer)
        if isinstance(artifact, Refused):
            return artifact
        if problem := self._unsupported or unsupported_request(request):
            return Refused(reason=RefusalReason.LAYOUT_UNSUPPORTED, detail=problem)
        if self._stalled:
            return Refused(reason=RefusalReason.STORE_UNREACHABLE, detail="the store does not answer")
        manifest = read_offer(self._store, tracked.kv.tenant, artifact)
        if isinstance(manifest, Refused):
            return manifest
        tracked.manifest = manifest
        if tracked.own is None:
            return Refused(reason=RefusalReason.REVISION_UNKNOWN, detail=tracked.unknown)
        contract = self._contract(tracked.kv, manifest, tracked.own)
        if isinstance(contract, Refused):
            return contract
        return admit(
            manifest,
            own=tracked.own,
            tenant=tracked.kv.tenant,
            prompt=request.prompt_token_ids,
            tensors=self._tensors,
            now_ms=time.time_ns() // 1_000_000,
            contract=contract,
        )

    def _contract(self, kv: KvRequest, manifest: Manifest, own: Descriptor) -> Contract | Refused | None:
        if kv.contract is None or manifest.revision == own.digest:
            return None
        return self._contracts.find(kv.contract)

    def _refuse(self, tracked: Tracked, refused: Refused) -> None:
        manifest = tracked.manifest
        refusal = Refusal(
            artifact=str(tracked.kv.offer)[:100],
            reason=refused.reason,
            detail=refused.detail,
            differing=refused.differing,
            artifact_revision=manifest.revision if manifest else None,
            artifact_producer=manifest.producer if manifest else None,
        )
        tracked.refuse(refusal)
        self._counters.add(Count.REFUSALS, reason=refusal.reason)
        logger.info("Everturn refuses %s: %s, %s", refusal.artifact, refusal.reason, refusal.detail)

    def _learned_load(self, request_id: str, outcome: Loaded | Refusal) -> None:
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        tracked.loading = False
        if isinstance(outcome, Loaded):
            tracked.evidence = replace(tracked.evidence, loaded=outcome)
            self._counters.add_hit(outcome)
        else:
            # Never offered to this request again, also where the engine recomputes by itself.
            tracked.admitted, tracked.load_refused = None, True
            if tracked.evidence.refusal is None:
                tracked.refuse(outcome)
                self._counters.add(Count.REFUSALS, reason=outcome.reason)
        self._report(tracked)
        self._forget_if_settled(request_id, tracked)

    def _learned_save(self, request_id: str, outcome: Published | str) -> None:
        self._planner.settled(request_id)
        tracked = self._tracked.get(request_id)
        if tracked is None:
            return
        tracked.saving = False
        if isinstance(outcome, Published):
            tracked.evidence = replace(tracked.evidence, published=outcome)
            self._counters.add_publication(outcome)
        else:
            if outcome == WEIGHTS_CHANGED:
                # A save looks at the weights itself, and on a busy machine may be the first to.
                self._disown(tracked)
            self._not_published(tracked, outcome)
        self._report(tracked)
        self._forget_if_settled(request_id, tracked)

    def _not_published(self, tracked: Tracked, why: str) -> None:
        tracked.evidence = replace(tracked.evidence, publish_failure=why)
        self._counters.add(Count.PUBLISH_FAILURES)

    def _forget_if_settled(self, request_id: str, tracked: Tracked) -> None:
        if tracked.ended and not tracked.loading and not tracked.saving:
            del self._tracked[request_id]

    def _report(self, tracked: Tracked) -> None:
        wanted = tracked.kv.publish is not None
        known = tracked.evidence.published is not None or tracked.evidence.publish_failure is not None
        try:
            self._reports.write_attempt(tracked.evidence, publishing=wanted and not known)
        except OSError:  # a full disk loses the report, not the request
            logger.exception("Everturn could not report on attempt %s", tracked.kv.attempt)
