"""The stack's child processes: waited for while they start, and each failure told in one line with its way out."""

import time
from collections.abc import Callable

from stack.errors import StackError
from workers import child

POLL_S = 0.02


class Child(child.Child):
    def wait_ready(self, ready: Callable[[], bool], *, timeout_s: float, way_out: str = "") -> None:
        """Raises StackError when the program ends first, or is not ready in time; it is then still to be stopped."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.ended(within_s=POLL_S):
                raise self._failed(f"ended while starting ({self.end_of()})", way_out)
            if time.monotonic() > deadline:
                raise self._failed(f"was not ready after {timeout_s:.0f} s", way_out)

    def wait_end(self, *, timeout_s: float) -> None:
        if not self.ended(within_s=timeout_s):
            raise self._failed(f"was not done after {timeout_s:.0f} s", "")

    def _failed(self, what_happened: str, way_out: str) -> StackError:
        told = f"{self.program.name} {what_happened}: {self.last_words()}"
        return StackError(f"{told}; {way_out}" if way_out else told)
