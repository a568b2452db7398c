"""Whether the parameters in this process are still those that were measured: by a sample of the bytes of each of them.

vLLM tells a connector nothing of weights that are reloaded, slept away or received from a trainer, so it has to look.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from threading import Lock

import numpy as np
import torch
from torch import nn

from workers.kv_connector.model_walk import ModelWalk

logger = logging.getLogger("vllm.everturn")

PLACES = 32
RUN_BYTES = 64
"""Of each parameter: as many places from its first byte to its last, and so many bytes at each, which is a line of a CPU's cache."""

GLANCE_SHARE = 0.05
"""Of the time at most, however many requests begin. A look thus serves for twenty times what it took: less than it takes to
rewrite the parameters, of which it read a small part."""


class WeightsWatch:
    """Safe to use from many threads."""

    def __init__(self, models: Callable[[], Sequence[nn.Module]]) -> None:
        """Takes what is there now for what was measured."""
        self._models = models
        self._lock = Lock()
        self._changes = 0
        self._looked_at = self._took_s = 0.0
        self._walk = ModelWalk([])
        self._keys: object = None
        self._places = _Places.of([])
        self._sample = self._take()

    def look(self) -> int:
        """How many times they were found changed so far; 0 as long as they are what was measured."""
        with self._lock:
            self._look()
            return self._changes

    def glance(self) -> int:
        """As `look`, for whoever comes often: what was seen a moment ago serves again."""
        with self._lock:
            if time.monotonic() >= self._looked_at + self._took_s / GLANCE_SHARE:
                self._look()
            return self._changes

    @property
    def changes(self) -> int:
        """As last seen."""
        return self._changes

    def _look(self) -> None:
        before, self._sample = self._sample, self._take()
        if found := self._sample.differing(before):
            self._changes += 1
            logger.error("Everturn finds the weights changed in memory: %s", found)

    def _take(self) -> "_Sample":
        began, models = time.monotonic(), self._models()
        if not self._walk.stands(models):
            self._walk = ModelWalk(models)
        keys = self._walk.names, *self._walk.whereabouts()
        if keys != self._keys:
            # Kept, since making the views takes most of the time. They keep what is replaced in memory until the next look.
            self._places = _Places.of(list(zip(self._walk.names, self._walk.tensors, strict=True)))
            self._keys = keys if self._places.lasting else None
        sample = _Sample(places=self._places, content=self._places.read(), packed=self._walk.packed)
        self._looked_at = time.monotonic()
        self._took_s = self._looked_at - began
        return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    places: "_Places"
    content: tuple[bytes, ...]
    packed: tuple[object, ...]
    """What nobody can look into: another one is taken for another's weights."""

    def differing(self, before: "_Sample") -> str:
        """In words; empty where nothing does."""
        ours, theirs = self.places, before.places
        if ours is not theirs and (ours.names, ours.lengths) != (theirs.names, theirs.lengths):
            return "their names or sizes"
        if self.packed != before.packed:
            return "those that vLLM packs for a CPU were packed anew"
        if self.content == before.content:
            return ""
        parts = zip(ours.names, self.parts(), before.parts(), strict=True)
        changed = [name for name, now, then in parts if now != then]
        return f"{len(changed)} of {len(ours.names)} parameters, such as {changed[0]}"

    def parts(self) -> Sequence[bytes]:
        whole, ends = b"".join(self.content), [*accumulate(self.places.lengths)]
        return [whole[end - length : end] for end, length in zip(ends, self.places.lengths, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Where tensors are looked at, together as far as they lie on one device: a call for each would take most of the time."""

    names: tuple[str, ...]
    lengths: tuple[int, ...]
    """Bytes of each that are looked at."""
    readers: tuple[Callable[[], bytes], ...]
    lasting: bool
    """All of them are views, so that they show later what is there then."""

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, torch.Tensor]]) -> "_Places":
        groups: dict[tuple[torch.device, int], list[tuple[str, torch.Tensor]]] = {}
        with torch.no_grad():
            dense = [(name, tensor if _is_dense(tensor) else tensor.contiguous()) for name, tensor in tensors]
            for name, tensor in dense:
                places = _places(tensor)
                groups.setdefault((places.device, places.dim()), []).append((name, places))
        named = [pair for group in groups.values() for pair in group]
        return cls(
            names=tuple(name for name, _ in named),
            lengths=tuple(places.numel() for _, places in named),
            readers=tuple(_reader([places for _, places in group]) for group in groups.values()),
            lasting=all(ours is theirs for (_, ours), (_, theirs) in zip(dense, tensors, strict=True)),
        )

    def read(self) -> tuple[bytes, ...]:
        return tuple([read() for read in self.readers])


def _is_dense(tensor: torch.Tensor) -> bool:
    """Nothing else lies between its elements."""
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return span == tensor.numel()


def _places(tensor: torch.Tensor) -> torch.Tensor:
    """A view of the bytes that are looked at: all, where they are few."""
    size = tensor.element_size()
    length = tensor.numel() * size
    shape: tuple[int, ...] = (length,)
    steps: tuple[int, ...] = (1,)
    if length > PLACES * RUN_BYTES:
        shape, steps = (PLACES, RUN_BYTES), (_step(length), 1)
    places = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return places.set_(tensor.untyped_storage(), tensor.storage_offset() * size, shape, steps)


def _step(length: int) -> int:
    """From one place to the next: an odd number of bytes, so that in a matrix the places are in different columns."""
    return ((length - RUN_BYTES) // (PLACES - 1) - 1) | 1


def _reader(places: Sequence[torch.Tensor]) -> Callable[[], bytes]:
    """Reads them one after the other, again and again; they are of one device and as many dimensions."""
    device = places[0].device
    if device.type == "cpu":
        arrays = [one.numpy() for one in places]  # with half of torch's ado, which is most of a look
        return lambda: np.concatenate(arrays).tobytes()

    def read() -> bytes:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a write that was begun is seen
        with torch.no_grad():
            return bytes(torch.cat(list(places)).cpu().numpy().tobytes())

    return read
