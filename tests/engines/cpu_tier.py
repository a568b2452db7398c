"""vLLM's own tiered offloading, file-system tier included, on a CPU: all of it stock but the copy engine, which wants a GPU.

Loaded by the engine through `spec_module_path`.
"""

from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class MemoryCopies(OffloadingWorker):  # type: ignore[misc]
    """Copies whole blocks, one chunk each, at once."""

    def __init__(self, kv_caches: Any, region: SharedOffloadRegion) -> None:
        self._region = region
        self._engine = [
            cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes) for cache in kv_caches.tensors
        ]
        self._memory = [region.create_next_worker_view(cache.page_size_bytes) for cache in kv_caches.tensors]
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._engine, src_spec, self._memory, dst_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, self._memory, src_spec, self._engine, dst_spec)

    def _copy(self, job_id: int, sources: Any, src_spec: Any, targets: Any, dst_spec: Any) -> bool:
        for source, target in zip(sources, targets, strict=True):
            target[torch.from_numpy(dst_spec.block_ids)] = source[torch.from_numpy(src_spec.block_ids)]
        self._done.append(TransferResult(job_id=job_id, success=True, transfer_size=0, transfer_time=0.0))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def shutdown(self) -> None:
        self._memory.clear()
        self._region.cleanup()


class CpuTieringSpec(TieringOffloadingSpec):  # type: ignore[misc]
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._copies: MemoryCopies | None = None

    def get_worker(self, kv_caches: Any) -> MemoryCopies:
        if self._copies is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._copies = MemoryCopies(kv_caches, region)
        return self._copies
