"""What of a finished request is saved: which blocks, how each was made, or in words why nothing is."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.artifact import Block, MadeBy, Refused, block_keys, parse_artifact_id
from service.domain.revision import Descriptor
from workers.kv_connector.jobs import SaveBlock, SaveJob
from workers.kv_connector.tracked import Tracked, unsupported_request

PINNABLE_SHARE = 0.5
"""Of the engine's KV blocks: as many may wait to be saved, which the engine keeps from other requests until then."""

ORIGINS_KEPT = 65_536

PUBLISHABLE = frozenset({"FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"})
"""By the names of vLLM's request states."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """What would have been saved, were the store quicker."""

    why: str


class SavePlanner:
    def __init__(self, *, unsupported: str | None, kv_blocks: int) -> None:
        """`kv_blocks`: how many the engine has in all."""
        self._unsupported = unsupported
        self._kv_blocks = kv_blocks
        self._pending: dict[str, tuple[int, ...]] = {}
        self._pinned: Counter[int] = Counter()
        self._origins: OrderedDict[str, MadeBy] = OrderedDict()

    def plan(
        self,
        request: Any,
        tracked: Tracked,
        block_ids: Sequence[int],
        *,
        under: tuple[Descriptor | None, str],
        stalled: bool,
    ) -> SaveJob | Dropped | str:
        """A job stays pending until `settled`.

        Args:
            request: vLLM's.
            tracked: what is known of it.
            block_ids: its blocks, all of which the engine keeps until the job is answered.
            under: what it is computed under now, or why that is not known.
            stalled: the store hangs.
        """
        own, unknown = under
        artifact = parse_artifact_id(tracked.kv.publish)
        if isinstance(artifact, Refused):
            return artifact.detail
        if why := self._unfit(request, tracked):
            return why
        if own is None or own is not tracked.own:
            return unknown or "what it was computed under changed meanwhile"
        if stalled:
            return Dropped("the store does not answer")
        if full := self._full(block_ids):
            return Dropped(full)
        blocks = self._blocks(request, tracked, block_ids, own)
        if not blocks:
            return "it has no whole block of computed tokens"
        self._pending[request.request_id] = tuple(set(block_ids))
        self._pinned.update(set(block_ids))
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
        for block_id in self._pending.pop(request_id, ()):
            self._pinned[block_id] -= 1
            if not self._pinned[block_id]:
                del self._pinned[block_id]

    def _full(self, block_ids: Sequence[int]) -> str | None:
        """Blocks that several requests share are counted once, as the engine keeps them once."""
        most = int(self._kv_blocks * PINNABLE_SHARE)
        needed = len(set(block_ids) - self._pinned.keys())
        if len(self._pinned) + needed <= most:
            return None
        return (
            f"{len(self._pinned)} of the engine's {self._kv_blocks} KV blocks already wait to be saved, "
            f"and with its {needed} they would be more than {most}"
        )

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
