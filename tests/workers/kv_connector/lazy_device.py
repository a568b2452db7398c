"""An accelerator as it behaves towards copies, without one: what is queued happens later, or when somebody waits for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

Work = Callable[[], object]


@dataclass(eq=False)
class LazyDevice:
    """As `devices.Cuda`, in host memory."""

    is_host: bool = False
    pins: bool = False
    computing: list[Work] = field(default_factory=list)
    """What the model's own stream still has to do."""
    _lock: Lock = field(default_factory=Lock)

    def thread_begins(self) -> None:
        return

    def mark(self) -> Any:
        return len(self.computing)

    @contextmanager
    def copies(self, mark: Any) -> Iterator[Callable[[], None]]:
        queued: list[Work] = []

        def finish() -> None:
            with _disable_current_modes():
                with self._lock:
                    for work in self.computing[:mark]:
                        work()
                    self.computing[:mark] = [lambda: None] * mark
                while queued:
                    queued.pop(0)()

        with _Deferred(queued):
            yield finish


class _Deferred(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type it
    def __init__(self, queued: list[Work]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._queued = queued

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given = kwargs or {}
        if func is not torch.ops.aten.copy_.default:
            return func(*args, **given)
        assert args[2:] == (True,) or given.get("non_blocking"), "a copy that waits would hold up all others"
        self._queued.append(lambda: func(*args, **given))
        return args[0]
