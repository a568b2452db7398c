"""Says what is going on while a step takes longer than two seconds, on a terminal or in a log."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

CLEAR_LINE = "\r\x1b[K"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    stream: TextIO
    quiet_s: float = 2.0
    terminal_repeat_s: float = 0.5
    log_repeat_s: float = 10.0
    clock: Callable[[], float] = time.monotonic

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Prints nothing for a quick step; else a line that grows old, and how it ended."""
        began = self.clock()
        over = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(what, began, over), daemon=True)
        ticker.start()
        outcome = "failed after"
        try:
            yield
            outcome = "done in"
        finally:
            over.set()
            ticker.join()
            elapsed = self.clock() - began
            if elapsed >= self.quiet_s:
                start = CLEAR_LINE if self.stream.isatty() else ""
                self._write(f"{start}{what} ... {outcome} {elapsed:.0f} s\n")

    def say(self, line: str) -> None:
        self._write(f"{line}\n")

    def _tick(self, what: str, began: float, over: threading.Event) -> None:
        terminal = self.stream.isatty()
        wait_s = self.quiet_s
        while not over.wait(wait_s):
            elapsed = self.clock() - began
            self._write(
                f"{CLEAR_LINE}{what} ... {elapsed:.0f} s" if terminal else f"{what} ... {elapsed:.0f} s\n"
            )
            wait_s = self.terminal_repeat_s if terminal else self.log_repeat_s

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
