"""One block of the engine's paged KV cache, copied to and from one run of host bytes; on CPU and CUDA alike."""

from dataclasses import dataclass
from threading import local
from typing import Any

import numpy as np
import torch

from service.domain.artifact import Tensor
from service.domain.revision import Descriptor
from workers.kv_connector.devices import Device, device_of


@dataclass(frozen=True, slots=True)
class _Slice:
    cache: torch.Tensor
    start: int
    stop: int
    on_host: "np.ndarray[Any, np.dtype[np.uint8]] | None"
    """The same memory: a copy through torch costs a host more than the bytes do."""


class PagedBlocks:
    """vLLM registers every layer as [block, head, token, content]: the payload is layer after layer of one block."""

    def __init__(
        self,
        own: Descriptor,
        tensors: tuple[Tensor, ...],
        kv_caches: dict[str, torch.Tensor],
        device: Device | None = None,
    ) -> None:
        """`device`: where the caches lie; told by themselves where it is None."""
        self.own = own
        self.tensors = tensors
        self.device = device or device_of(next(iter(kv_caches.values())))
        self._slices: list[_Slice] = []
        self.block_bytes = 0
        self._local = local()
        for cache in kv_caches.values():
            size = cache[0].numel() * cache.element_size()
            on_host = cache.view(torch.uint8).numpy() if self.device.is_host else None
            self._slices.append(_Slice(cache, self.block_bytes, self.block_bytes + size, on_host))
            self.block_bytes += size

    def own_buffer(self, index: int = 0) -> torch.Tensor:
        """Of one block, and of the calling thread, which keeps it: fresh pages and pinning cost more than the copy."""
        buffers: dict[int, torch.Tensor] = self._local.__dict__.setdefault("buffers", {})
        if index not in buffers:
            buffers[index] = torch.empty(self.block_bytes, dtype=torch.uint8, pin_memory=self.device.pins)
        return buffers[index]

    def copy_in(self, buffer: torch.Tensor, block_id: int) -> None:
        host = buffer.numpy()
        for part in self._slices:
            if part.on_host is not None:
                inside = part.on_host[block_id]
                np.copyto(inside, host[part.start : part.stop].reshape(inside.shape))
                continue
            target = part.cache[block_id]
            source = buffer[part.start : part.stop].view(part.cache.dtype).view(target.shape)
            target.copy_(source, non_blocking=True)

    def copy_out(self, block_id: int, buffer: torch.Tensor) -> None:
        host = buffer.numpy()
        for part in self._slices:
            if part.on_host is not None:
                inside = part.on_host[block_id]
                np.copyto(host[part.start : part.stop].reshape(inside.shape), inside)
                continue
            source = part.cache[block_id]
            target = buffer[part.start : part.stop].view(part.cache.dtype).view(source.shape)
            target.copy_(source, non_blocking=True)


def memory(buffer: torch.Tensor) -> memoryview:
    """The buffer's own bytes, without a copy."""
    return buffer.numpy().data
