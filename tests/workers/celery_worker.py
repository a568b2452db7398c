"""A real Celery worker in processes of its own, that can be killed, stopped and counted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
START_S = 60.0


@dataclass(slots=True)
class CeleryWorker:
    database_url: str
    broker_url: str
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self, *, concurrency: int = 2, beat: bool = True, **settings: str) -> None:
        """With settings of the service by their names, in lower case."""
        with self.log.open("ab") as log:
            began = log.tell()
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "celery", "--app", "workers.celery_app", "worker"),
                    *("--queues", "interactive,background", "--concurrency", str(concurrency)),
                    *(
                        "--loglevel",
                        "INFO",
                        "--without-mingle",
                        "--without-gossip",
                        "--hostname",
                        f"{self.log.stem}@%h",
                    ),
                    *(("--beat", "--schedule", str(self.log.with_suffix(".beat"))) if beat else ()),
                ],
                cwd=REPOSITORY,
                env=os.environ
                | {"EVERTURN_DATABASE_URL": self.database_url, "EVERTURN_BROKER_URL": self.broker_url}
                | {f"EVERTURN_{name.upper()}": value for name, value in settings.items()},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: b" ready." in self.log.read_bytes()[began:], "the worker is ready", START_S)

    def said(self) -> str:
        return self.log.read_text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def signal_tree(self, number: signal.Signals) -> None:
        for pid in (self.pid, *self.children()):
            os.kill(pid, number)

    def kill_main(self) -> list[int]:
        """SIGKILL to the main process alone; returns what it leaves behind."""
        left = self.children()
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        return left

    def close(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.signal_tree(signal.SIGKILL)
        self.process.wait()


def has_ended(pid: int) -> bool:
    """Also if nobody has reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(true: Callable[[], bool], what: str, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.05)
