"""A launcher in a process of its own, over a fake vLLM and a fake API."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.domain.revision import Descriptor
from tests.domain.descriptors import V12

REPOSITORY = Path(__file__).parents[2]
PATIENCE_S = 20.0
ANSWER = list(range(100, 116))
"""To the canary."""


def identity(descriptor: Descriptor = V12) -> dict[str, Any]:
    return {"revision": descriptor.digest, "descriptor": descriptor.to_json()}


@dataclass(slots=True)
class Launched:
    folder: Path
    port: int
    api_url: str
    script: dict[str, Any] = field(
        default_factory=lambda: {
            "health": 200,
            "load": 0,
            "load_s": 0,
            "shared": [],
            "complaint": "",
            "identity_status": 200,
            "identity": identity(),
            "render_status": 200,
            "answer": ANSWER,
        }
    )
    process: subprocess.Popen[str] | None = None

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def behave(self, **changes: Any) -> None:
        self.script |= changes
        draft = self.folder / "script.draft"
        draft.write_text(json.dumps(self.script))
        draft.replace(self.folder / "script")

    def start(self, *more: str) -> None:
        self.behave()
        arguments = {
            "--model": self.model,
            "--served-model-name": "chat",
            "--port": self.port,
            "--api": self.api_url,
            "--key-file": self.folder / "key",
            "--store": self.folder / "store",
            "--run-dir": self.folder / "run",
        }
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "workers.launcher"),
                *(str(part) for pair in arguments.items() for part in pair),
                *more,
            ],
            cwd=REPOSITORY,
            env=os.environ
            | {"PYTHONPATH": str(self.folder / "packages"), "FAKE_VLLM": str(self.folder / "script")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def until_said(self, what: str) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        assert any(what in line for line in self.process.stderr), what

    def end(self) -> tuple[int, str]:
        """Its exit status and all that it said, once it has ended by itself."""
        assert self.process is not None
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def journal(self) -> list[tuple[float, str]]:
        path = self.folder / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(float(at), what) for at, _, what in (line.partition(" ") for line in lines)]

    def engine_pid(self) -> int:
        return int(next(what.split()[1] for _, what in self.journal() if what.startswith("pid ")))

    def engine_argv(self) -> list[str]:
        argv: list[str] = json.loads(
            next(what.removeprefix("argv ") for _, what in self.journal() if what.startswith("argv "))
        )
        return argv


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
