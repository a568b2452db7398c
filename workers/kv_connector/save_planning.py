"""What of a finished request is saved: which blocks, how each was made, or in words why nothing is."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from service.domain.artifact import Block, MadeBy, Refused, block_keys, parse_artifact_id
from service.domain.revision import Descriptor
from workers.kv_connector.jobs import SaveBlock, SaveJob
from workers.kv_connector.tracked import Tracked, unsupported_request

MAX_PENDING_SAVES = 64
"""Each holds its request's blocks in the engine until it is written."""

ORIGINS_KEPT = 65_536

PUBLISHABLE = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
"""By the names of vLLM's request states."""


class SavePlanner:
    def __init__(self, *, unsupported: str | None) -> None:
        self._unsupported = unsupported
        self._pending: set[str] = set()
        self._origins: OrderedDict[str, MadeBy] = OrderedDict()

    def plan(
        self,
        request: Any,
        tracked: Tracked,
        block_ids: Sequence[int],
        *,
        under: tuple[Descriptor | None, str],
    ) -> SaveJob | str:
        """`under`: what the request is computed under now, or why that is not known. A job stays pending until `settled`."""
        own, unknown = under
        artifact = parse_artifact_id(tracked.kv.publish)
        if isinstance(artifact, Refused):
            return artifact.detail
        if why := self._unfit(request, tracked):
            return why
        if own is None or own is not tracked.own:
            return unknown or "what it was computed under changed meanwhile"
        if len(self._pending) >= MAX_PENDING_SAVES:
            return f"{MAX_PENDING_SAVES} publications are already waiting"
        blocks = self._blocks(request, tracked, block_ids, own)
        if not blocks:
            return "it has no whole block of computed tokens"
        self._pending.add(request.request_id)
        return SaveJob(
            request_id=request.request_id,
            attempt=tracked.kv.attempt,
            tenant=tracked.kv.tenant,
            artifact=artifact,
            lease_s=tracked.kv.lease_s,
            blocks=blocks,
            adapter=own.kv.adapter,
        )

    def settled(self, request_id: str) -> None:
        """Its save was answered, or withdrawn: the engine has its blocks back."""
        self._pending.discard(request_id)

    def _unfit(self, request: Any, tracked: Tracked) -> str | None:
        if request.status.name not in PUBLISHABLE:
            return f"the request ended as {request.status.name}"
        if tracked.load_refused:
            return "this attempt was promised KV that was then refused"
        if tracked.admitted is not None and tracked.admitted.contract is not None:
            return (
                f"it was computed on KV of {tracked.manifest and tracked.manifest.revision}, under a contract"
            )
        if problem := self._unsupported or unsupported_request(request):
            return problem
        if type(tracked.kv.lease_s) is not int or tracked.kv.lease_s <= 0:
            return "its lease is not a positive number of seconds"
        return None

    def _blocks(
        self, request: Any, tracked: Tracked, block_ids: Sequence[int], own: Descriptor
    ) -> tuple[SaveBlock, ...]:
        size = own.kv.block_size
        # The KV of the token sampled last is not computed, or not surely: it is never part of an artifact.
        computed = min(request.num_computed_tokens, request.num_tokens - 1)
        count = min(computed // size, len(block_ids))
        keys = block_keys(own.digest, tracked.kv.tenant, request.all_token_ids[: count * size], size)
        known = _verified_blocks(tracked)
        blocks = tuple(
            SaveBlock(
                key=key,
                block_id=block_ids[index],
                made_by=self._made_by(request, tracked, index, key, size),
                stored=known.get(key),
            )
            for index, key in enumerate(keys)
        )
        self._remember(blocks)
        return blocks

    def _made_by(self, request: Any, tracked: Tracked, index: int, key: str, size: int) -> MadeBy:
        """PREFILL only where it is certain: whoever compares bit for bit relies on it."""
        if request.num_preemptions or (index + 1) * size > request.num_prompt_tokens:
            return MadeBy.DECODE
        if index < tracked.evidence.local_tokens // size:
            return self._origins.get(key, MadeBy.DECODE)
        if tracked.manifest and key in _verified_blocks(tracked):
            return tracked.manifest.made_by
        return MadeBy.PREFILL

    def _remember(self, blocks: Sequence[SaveBlock]) -> None:
        for block in blocks:
            self._origins[block.key] = block.made_by
        while len(self._origins) > ORIGINS_KEPT:
            self._origins.popitem(last=False)


def _verified_blocks(tracked: Tracked) -> dict[str, Block]:
    if tracked.evidence.loaded is None or tracked.manifest is None or tracked.admitted is None:
        return {}
    loaded = tracked.manifest.blocks[tracked.loaded_from_block : tracked.admitted.blocks]
    return {block.key: block for block in loaded}
