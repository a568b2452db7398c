"""A simulated engine in a process of its own, which can be killed and stopped; at each step of its work it asks its parent whether to go on."""

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from threading import Thread
from uuid import uuid4

from service.domain.plan import EngineRole
from tests.engines.simulated import SimulatedEngine, Stored
from workers.tether import end_with_parent

START_S = 60.0
FORKS = get_context("forkserver")
FORKS.set_forkserver_preload(["tests.faults.engine_process"])


OLD, NEW = "v12", "v13"
SLOW = ".slow"
WIPED = ".wiped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What an engine is there for."""

    weights: str
    role: EngineRole = EngineRole.BOTH

    def __str__(self) -> str:
        return f"{self.weights} {self.role}"


ANSWERS_OLD, ANSWERS_NEW = Post(weights=OLD), Post(weights=NEW)
POSTS = (
    ANSWERS_OLD,
    ANSWERS_NEW,
    Post(weights=OLD, role=EngineRole.PREFILL),
    Post(weights=NEW, role=EngineRole.PREFILL),
)


class KvFolder(MutableMapping[str, Stored]):
    """Shared by all engines; a file appears whole or not at all. Each use takes as many seconds longer as a file `.slow` says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def wipe(self) -> None:
        """What there was can be read in `.wiped`."""
        gone = self._folder / WIPED
        gone.mkdir(exist_ok=True)
        for name in self:
            (self._folder / name).rename(gone / name)

    def slow_down(self, seconds: float) -> None:
        temporary = self._folder / f".{uuid4().hex}"
        temporary.write_text(str(seconds))
        temporary.rename(self._folder / SLOW)

    def speed_up(self) -> None:
        (self._folder / SLOW).unlink()

    def _wait(self) -> None:
        try:
            time.sleep(float((self._folder / SLOW).read_text()))
        except FileNotFoundError:
            return

    def __getitem__(self, key: str) -> Stored:
        self._wait()
        try:
            found: Stored = pickle.loads((self._folder / key).read_bytes())  # noqa: S301 our own
        except FileNotFoundError as error:
            raise KeyError(key) from error
        return found

    def __setitem__(self, key: str, value: Stored) -> None:
        self._wait()
        temporary = self._folder / f".{uuid4().hex}"
        temporary.write_bytes(pickle.dumps(value))
        temporary.rename(self._folder / key)

    def __delitem__(self, key: str) -> None:
        (self._folder / key).unlink()

    def __iter__(self) -> Iterator[str]:
        return iter([path.name for path in self._folder.iterdir() if not path.name.startswith(".")])

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(slots=True)
class EngineProcess:
    weights: str
    kv: Path
    at: Callable[["EngineProcess", str], None]
    """Called at each of its steps, while it stands still."""
    post: Post
    """Where it is, whatever its weights are."""
    port: int = 0
    boot: str = field(default_factory=lambda: f"boot_{uuid4().hex}")
    address: str = ""
    stopped: bool = False
    """It says nothing, as one whose host hangs; whoever sends its heartbeats sends none."""
    _process: ForkServerProcess = field(init=False)

    def __post_init__(self) -> None:
        ours, theirs = FORKS.Pipe()
        self._process = FORKS.Process(
            target=_serve, args=(theirs, self.weights, self.kv, self.boot, self.port), daemon=True
        )
        self._process.start()
        theirs.close()
        assert ours.poll(START_S), "the engine did not start"
        self.address, self.port = ours.recv()
        Thread(target=self._answer, args=(ours,), daemon=True).start()

    @property
    def model(self) -> SimulatedEngine:
        """Its twin, to be asked what it should have said."""
        return SimulatedEngine(self.weights, {}, boot=self.boot)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join(START_S)

    def stop(self) -> None:
        self.stopped = True
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)
        self.stopped = False

    def _signal(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, number)

    def _answer(self, pipe: Connection) -> None:
        try:
            while True:
                self.at(self, pipe.recv())
                pipe.send(None)
        except (EOFError, OSError):
            return  # it is dead


def _serve(parent: Connection, weights: str, kv: Path, boot: str, port: int) -> None:
    end_with_parent(os.getppid(), signal.SIGKILL)

    def ask(step: str) -> None:
        parent.send(step)
        parent.recv()

    with SimulatedEngine(weights, KvFolder(kv), boot=boot, port=port) as engine:
        engine.at = ask
        parent.send((engine.address, int(engine.address.rpartition(":")[2])))
        signal.pause()
