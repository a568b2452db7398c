"""One block of the engine's paged KV cache, copied to and from one run of host bytes; on CPU and CUDA alike."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import local
from typing import Any

import torch

from service.domain.artifact import Tensor
from service.domain.revision import Descriptor
from workers.kv_connector.devices import Device, device_of


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Of one block's payload, in host memory."""

    bytes: torch.Tensor
    memory: memoryview
    """The same bytes."""
    pieces: Sequence[Any]
    """The same bytes once more, of each layer, shaped as the layer's slice of a block is."""


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
        self._caches = tuple(kv_caches.values())
        # The same memory: a copy through torch costs a host more than the bytes do.
        self._on_host = (
            tuple(cache.view(torch.uint8).numpy() for cache in self._caches) if self.device.is_host else ()
        )
        self._sizes = [cache[0].numel() * cache.element_size() for cache in self._caches]
        self.block_bytes = sum(self._sizes)
        self._local = local()

    def own_buffer(self, index: int = 0) -> Buffer:
        """Of one block, and of the calling thread, which keeps it: fresh pages and pinning cost more than the copy."""
        buffers: dict[int, Buffer] = self._local.__dict__.setdefault("buffers", {})
        if index not in buffers:
            buffers[index] = self._buffer()
        return buffers[index]

    def _buffer(self) -> Buffer:
        data = torch.empty(self.block_bytes, dtype=torch.uint8, pin_memory=self.device.pins)
        parts = zip(torch.split(data, self._sizes), self._caches, strict=True)
        shaped = [part.view(cache.dtype).view(cache.shape[1:]) for part, cache in parts]
        pieces = [piece.view(torch.uint8).numpy() for piece in shaped] if self.device.is_host else shaped
        return Buffer(data, data.numpy().data, pieces)

    def copy_in(self, buffer: Buffer, block_id: int) -> None:
        if self.device.is_host:
            for cache, piece in zip(self._on_host, buffer.pieces, strict=True):
                cache[block_id] = piece
            return
        for target, source in zip(self._caches, buffer.pieces, strict=True):
            target[block_id].copy_(source, non_blocking=True)

    def copy_out(self, block_id: int, buffer: Buffer) -> None:
        if self.device.is_host:
            for cache, piece in zip(self._on_host, buffer.pieces, strict=True):
                piece[...] = cache[block_id]
            return
        for source, target in zip(self._caches, buffer.pieces, strict=True):
            target.copy_(source[block_id], non_blocking=True)
