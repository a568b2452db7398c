"""The parameters of models as one walk over their modules finds them, and, quicker, whether another walk would find the same."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PARTS = (attrgetter("_parameters"), attrgetter("_modules"))
"""Where a module keeps by name what it is made of."""

PACKED = "cpu_linear"
"""What vLLM multiplies by on a CPU: it has packed the weights into this, where nobody can look, and left an empty parameter."""


class ModelWalk:
    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._models = tuple(models)
        self._held = _Held(_modules_of(models))
        found = [pair for model in models for pair in model.named_parameters()]
        pairs = [plain for name, parameter in found for plain in _plain(name, parameter)]
        self.names = tuple(name for name, _ in pairs)
        self.tensors = tuple(tensor for _, tensor in pairs)
        # Tensors inside others may be exchanged, and no module shows it; and modules may have been changed since they were listed.
        self._lasting = self._held.holds_all(self.tensors)

    @property
    def packed(self) -> tuple[object, ...]:
        """Made anew with every loading of weights."""
        return self._held.packed

    def stands(self, models: Sequence[nn.Module]) -> bool:
        """Whether a walk over these would find the same: every module, from the first one down, holds what it held."""
        return self._lasting and _same(models, self._models) and self._held.stands()

    def whereabouts(self) -> tuple[list[int], list[torch.Size]]:
        """Addresses and shapes: a parameter may be given other memory, and stay itself."""
        with DisableTorchFunctionSubclass():  # which vLLM's parameters are, at microseconds for each question
            return list(map(torch.Tensor.data_ptr, self.tensors)), [tensor.shape for tensor in self.tensors]


class _Held:
    """What modules hold. Asked for every request, of hundreds of modules: by loops in C, and of as little as can be."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = tuple(modules)
        self._parts = self._parts_now()
        self._counts = list(map(len, self._parts))
        slots = [(part, name, member) for part in self._parts for name, member in part.items()]
        self._owners = [part for part, _, _ in slots]
        self._names = [name for _, name, _ in slots]
        self._members = [member for _, _, member in slots]
        self._packers = [vars(module) for module in modules if PACKED in vars(module)]
        self.packed = tuple(self._packed_now())

    def stands(self) -> bool:
        """As many as there were, and each under its name, so there is no other."""
        return (
            list(map(len, self._parts)) == self._counts
            and _same(self._parts_now(), self._parts)
            and _same(list(map(dict.get, self._owners, self._names)), self._members)
            and _same(self._packed_now(), self.packed)
        )

    def holds_all(self, tensors: Iterable[torch.Tensor]) -> bool:
        return set(map(id, tensors)) <= set(map(id, self._members))

    def _parts_now(self) -> list[dict[str, object]]:
        return list(chain.from_iterable(map(kind, self.modules) for kind in PARTS))

    def _packed_now(self) -> list[object]:
        return list(map(dict.get, self._packers, repeat(PACKED)))


def _modules_of(models: Sequence[nn.Module]) -> tuple[nn.Module, ...]:
    return tuple(module for model in models for module in model.modules())


def _same(ones: Sequence[object], others: Sequence[object]) -> bool:
    """By identity, which tensors are not compared by."""
    return len(ones) == len(others) and all(map(is_, ones, others))


def _plain(name: str, tensor: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Some quantized parameters keep their bytes in tensors inside."""
    partitions = getattr(tensor, "partitions", None)  # of vLLM's SharedWeightParameter
    if isinstance(partitions, dict):
        for index, part in partitions.items():
            yield from _plain(f"{name}.{index}", part)
    elif is_traceable_wrapper_subclass(tensor):
        for inner in tensor.__tensor_flatten__()[0]:
            yield from _plain(f"{name}.{inner}", getattr(tensor, inner))
    else:
        yield name, tensor
