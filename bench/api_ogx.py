"""OGX in front of the same engine: its own package in an environment of its own, its vLLM provider and its Responses API, on SQLite as it comes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree, which

import httpx

from stack.ports import find_free_port
from workers.child import Child, Program

HOME = Path(".everturn/ogx")
PACKAGES = ("ogx==1.5.0", "uvloop==0.23.0", "httptools==0.9.0")
"""The last two are not among what it asks for. The service has them, and so it is to have them too."""
PYTHONS = ("python3.12", "python3.13")
OLDEST = (3, 12)
NAMED_PYTHON = "SUITES_PYTHON"
"""As the public suites have theirs."""
START_S = 90.0
MODEL = "vllm/bench"
DATABASE = "sql.db"


class NotHad(Exception):
    """Why there is no OGX here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ogx:
    url: str
    http: httpx.Client
    database: Path


@contextmanager
def running_ogx(folder: Path, engine: str) -> Iterator[Ogx]:
    """In front of a vLLM at that address.

    Raises:
        NotHad: no Python that it runs on, or pip could not have it, or it does not start.
    """
    python = _environment()
    port = find_free_port()
    own = folder / f"ogx-{port}"
    own.mkdir()
    config = own / "config.yaml"
    config.write_text(json.dumps(_config(own, engine, port)))  # JSON is YAML
    env = dict(os.environ) | {"HOME": str(own)}
    argv = [str(python.with_name("ogx")), "run", str(config), "--port", str(port), "--insecure"]
    log = own / "ogx.log"
    child = Child.start(Program(name="OGX", argv=argv, env=env, log=log))
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
            _wait_until_ready(http, child)
            yield Ogx(url=url, http=http, database=own / DATABASE)
    finally:
        child.stop()


def _config(own: Path, engine: str, port: int) -> dict[str, object]:
    """Of what its own `starter` has: no more than the Responses API needs."""
    vllm = {"provider_id": "vllm", "provider_type": "remote::vllm", "config": {"base_url": f"{engine}/v1"}}
    responses = {
        "provider_id": "builtin",
        "provider_type": "inline::builtin",
        "config": {"persistence": {"responses": {"table_name": "responses", "backend": "sql_default"}}},
    }
    files = {
        "provider_id": "files",
        "provider_type": "inline::localfs",
        "config": {
            "storage_dir": str(own / "files"),
            "metadata_store": {"table_name": "files_metadata", "backend": "sql_default"},
        },
    }
    model = {"model_id": "bench", "provider_id": "vllm", "provider_model_id": "bench", "model_type": "llm"}
    return {
        "version": 2,
        "distro_name": "bench",
        "apis": ["files", "inference", "responses", "tool_runtime", "vector_io"],
        "providers": {
            "inference": [vllm],
            "responses": [responses],
            "files": [files],
            "tool_runtime": [],
            "vector_io": [],
        },
        "storage": {
            "backends": {
                "kv_default": {"type": "kv_sqlite", "db_path": str(own / "kv.db")},
                "sql_default": {"type": "sql_sqlite", "db_path": str(own / DATABASE)},
            },
            "stores": {
                "metadata": {"namespace": "registry", "backend": "kv_default"},
                "inference": {"table_name": "inference_store", "backend": "sql_default"},
                "conversations": {"table_name": "openai_conversations", "backend": "sql_default"},
                "prompts": {"table_name": "prompts", "backend": "sql_default"},
                "connectors": {"table_name": "connectors", "backend": "sql_default"},
            },
        },
        "registered_resources": {"models": [model]},
        "server": {"host": "127.0.0.1", "port": port},
    }


def _environment() -> Path:
    """Its Python; made when it is first asked for. Raises: NotHad."""
    python = HOME.absolute() / "bin" / "python"
    if (HOME / "made").is_file() and (HOME / "made").read_text() == " ".join(PACKAGES):
        return python
    rmtree(HOME, ignore_errors=True)
    base = _python()
    _run([base, "-m", "venv", str(HOME)])
    print(f"installing {PACKAGES[0]} (a minute or two, the first time)", flush=True)
    try:
        _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES])
    except NotHad:
        rmtree(HOME, ignore_errors=True)
        raise
    (HOME / "made").write_text(" ".join(PACKAGES))
    return python


def _python() -> str:
    """Raises: NotHad."""
    kept = sorted(map(str, Path.home().glob(".pyenv/versions/3.1[23].*/bin/python")))
    for name in (os.environ.get(NAMED_PYTHON, ""), sys.executable, *PYTHONS, *kept):
        found = which(name)
        if found is None:
            continue
        fits = [found, "-c", f"import sys, venv; sys.exit(sys.version_info < {OLDEST})"]
        if subprocess.run(fits, capture_output=True, check=False).returncode == 0:
            return found
    oldest = ".".join(map(str, OLDEST))
    raise NotHad(f"it needs Python {oldest} or newer; name one with {NAMED_PYTHON}=/path/to/python{oldest}")


def _run(command: list[str]) -> None:
    """Raises: NotHad."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise NotHad(f"`{' '.join(command[1:4])} ...` failed: {words[-1]}")


def _wait_until_ready(http: httpx.Client, child: Child) -> None:
    """Raises: NotHad."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and child.exit_status() is None:
        with suppress(httpx.TransportError):
            if http.get("/v1/health").is_success:
                return
        time.sleep(0.2)
    raise NotHad(f"it did not start: {child.last_words()}")
