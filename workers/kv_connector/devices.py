"""Where the KV cache lies, and how copies keep their place beside the work that is queued there."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol

import torch

from service.domain.errors import InvalidInput


class Device(Protocol):
    is_host: bool
    """Its memory is the host's: a copy needs no device."""
    pins: bool
    """Copies are quicker, and go on by themselves, from and to host memory that is pinned."""

    def thread_begins(self) -> None:
        """In each thread that runs transfers, first of all; those that it starts inherit what this does."""

    def mark(self) -> Any:
        """Its work so far: copies wait for it, and for nothing later."""

    def copies(self, mark: Any) -> AbstractContextManager[Callable[[], None]]:
        """Inside, copies are queued behind `mark` alone; what it yields waits until those so far are done."""


class Host:
    is_host = True
    pins = False

    def thread_begins(self) -> None:
        """Leaves the cores of the forward pass: vLLM binds its worker to them, one thread each, and threads inherit that.

        Its core process, which started this one, has all that the operator gave.
        """
        with suppress(OSError, AttributeError):  # some systems have no such calls
            os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))

    def mark(self) -> Any:
        return None  # whatever vLLM computes on a host is computed when it returns

    def copies(self, mark: Any) -> AbstractContextManager[Callable[[], None]]:
        del mark
        return nullcontext(lambda: None)


class Cuda:
    is_host = False
    pins = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def thread_begins(self) -> None:
        """Nothing: where a worker is bound, it is to what lies near its device."""

    def mark(self) -> Any:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def copies(self, mark: Any) -> Iterator[Callable[[], None]]:
        """On a stream of their own: the forward pass of other requests goes on beside them."""
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_event(mark)
        with torch.cuda.stream(stream):
            yield stream.synchronize


def device_of(cache: torch.Tensor) -> Device:
    """Raises: InvalidInput where nobody has thought about how copies keep their place there."""
    match cache.device.type:
        case "cpu":
            return Host()
        case "cuda":
            return Cuda(cache.device)
        case other:
            raise InvalidInput(f"KV on a device of kind '{other}' is not carried.", "kv_layout")
