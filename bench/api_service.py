"""The service in a process of its own, on a PostgreSQL of its own, with engines that are kept registered."""

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil

from service import rollout_flow
from service.domain.events import TenantId
from service.store.connection import make_engine
from service.store.migrate import upgrade
from stack.ports import find_free_port
from stack.postgres import EmbeddedPostgres
from workers.child import Child, Program

START_S = 60.0
TENANT = TenantId("bench")
HEARTBEAT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchService:
    url: str
    tenant_key: str
    admin: httpx.Client
    process: psutil.Process

    @property
    def rss_mb(self) -> float:
        return float(self.process.memory_info().rss) / 2**20

    @property
    def cpu_s(self) -> float:
        """That it has used so far; a busy machine makes turns slower, and not dearer."""
        spent = self.process.cpu_times()
        return float(spent.user + spent.system)

    @contextmanager
    def engine(self, told: Mapping[str, Any]) -> Iterator[None]:
        """Registered, behind `production`, and alive for as long as this lasts."""
        body = {key: told[key] for key in ("boot", "address", "descriptor")} | {"role": "both"}
        self.admin.post("/admin/engines", json=body).raise_for_status()
        alias = {"revision": told["revision"], "by": "bench"}
        self.admin.put("/admin/aliases/production", json=alias).raise_for_status()
        over = threading.Event()
        beating = threading.Thread(target=self._beat, args=(told["boot"], over), daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()

    def _beat(self, boot: str, over: threading.Event) -> None:
        while not over.wait(HEARTBEAT_S):
            with suppress(httpx.HTTPError):
                self.admin.post(f"/admin/engines/{boot}/heartbeat").raise_for_status()


@contextmanager
def running_service(
    folder: Path, server: EmbeddedPostgres, *, module: str = "service", env: Mapping[str, str] | None = None
) -> Iterator[BenchService]:
    """Args: module: that serves it. Several may stand on one database, and have its engines in common."""
    upgrade(server.url())
    engine = make_engine(server.url(), application_name="bench", pool_size=1)
    with engine.begin() as conn:
        keys = rollout_flow.bootstrap(
            conn,
            tenant=TENANT,
            kept=None,
            new_secret=lambda: f"sk-{secrets.token_hex(16)}",
            now=datetime.now(UTC),
        )
    engine.dispose()
    port = find_free_port()
    settings = dict(os.environ) | {
        "EVERTURN_DATABASE_URL": server.url(),
        "EVERTURN_BROKER_URL": "redis://127.0.0.1:1/0",
        "EVERTURN_PORT": str(port),
        # Neither is to be lost to a machine that is kept busy on purpose.
        "EVERTURN_ENGINE_LEASE_S": "60",
        "EVERTURN_TURN_LEASE_S": "60",
    }
    log = folder / f"{module}.log"
    argv = [sys.executable, "-m", module]
    child = Child.start(Program(name=module, argv=argv, env=settings | dict(env or {}), log=log))
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(
            base_url=url, headers={"authorization": f"Bearer {keys.operator}"}, timeout=60, trust_env=False
        ) as admin:
            _wait_until_ready(admin, child, log)
            yield BenchService(
                url=url, tenant_key=keys.tenant, admin=admin, process=psutil.Process(child.pid)
            )
    finally:
        child.stop()


@contextmanager
def engine_process(module: str, *arguments: float) -> Iterator[dict[str, Any]]:
    """An engine that is none, in a process of its own, and what it tells of itself."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        told = process.stdout and process.stdout.readline()
        if not told:
            raise SystemExit(f"{module} did not start")
        try:
            yield json.loads(told) | {"pid": process.pid}
        finally:
            if process.stdin is not None:
                process.stdin.close()


def _wait_until_ready(admin: httpx.Client, child: Child, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and child.exit_status() is None:
        with suppress(httpx.TransportError):
            if admin.get("/readyz").is_success:
                return
        time.sleep(0.1)
    raise SystemExit(f"the service did not come up:\n{log.read_text()[-3000:]}")
