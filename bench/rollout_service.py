"""What the service adds to a turn whose engine takes no time, how many turns it takes a second, and where its time goes."""

import json
import os
import pstats
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil

from bench.rollout_fleet import BenchFleet
from service.domain.artifact import ArtifactId, BootId
from service.domain.canary import TOKENS
from service.domain.events import Sampling, TenantId
from service.domain.evidence import KvRequest
from service.domain.revision import RevisionDigest
from service.engine import protocol
from service.engine.protocol import GenerateSpec
from stack.deployment import Deployment
from stack.ports import find_free_port

ALIAS = "bench-simulated"
ROUNDS, OF_EACH = 8, 15
TALKERS, TALK_S = 16, 8.0
PROFILED_S = 4.0
SAMPLING = Sampling(max_output_tokens=8, temperature=0.0, top_p=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    boot: str
    address: str
    revision: str
    pid: int

    def answer(self, http: httpx.Client, number: int) -> None:
        """All that a turn asks of its engine."""
        revision, boot = RevisionDigest(self.revision), BootId(self.boot)
        headers = protocol.identity_headers(revision, boot)
        body = {"messages": [{"role": "user", "content": f"Question {number}"}], "carried": None}
        rendered = http.post(self.address + protocol.RENDER_PATH, headers=headers, json=body)
        attempt = f"bench_{uuid4().hex}.1"
        spec = GenerateSpec(
            prompt=tuple(rendered.json()["token_ids"]),
            sampling=SAMPLING,
            kv=KvRequest(attempt=attempt, tenant=TenantId("bench"), publish=ArtifactId(f"kv_{uuid4().hex}")),
            revision=revision,
            boot=boot,
            cache_salt="bench",
        )
        headers, generate = protocol.build_generate(spec, stream=True)
        url = self.address + protocol.GENERATE_PATH
        with http.stream("POST", url, headers=headers, json=generate) as stream:
            for _ in stream.iter_lines():
                pass
        http.get(self.address + protocol.ATTEMPTS_PATH + attempt).raise_for_status()


@contextmanager
def simulated_engine(deployment: Deployment) -> Iterator[Simulated]:
    command = [sys.executable, "-m", "bench.api_engine", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        told = json.loads((process.stdout and process.stdout.readline()) or "null")
        if told is None or process.stdin is None:
            raise SystemExit("the simulated engine did not start")
        # The deployment lets no engine in without an answer to the canary: any, of the first of its revision.
        canary = {"prompt": [0], "answer": [0] * TOKENS, "compared": TOKENS}
        body = {key: told[key] for key in ("boot", "address", "descriptor")}
        body |= {"role": "both", "canary": canary}
        deployment.admin("POST", "/engines", body)
        deployment.admin("PUT", f"/aliases/{ALIAS}", {"revision": told["revision"], "by": "bench"})
        over = threading.Event()
        beat = f"/engines/{told['boot']}/heartbeat"

        def beating() -> None:
            while not over.wait(2.0):
                with suppress(httpx.HTTPError):
                    deployment.admin("POST", beat)

        thread = threading.Thread(target=beating, daemon=True)
        thread.start()
        try:
            yield Simulated(
                boot=told["boot"], address=told["address"], revision=told["revision"], pid=process.pid
            )
        finally:
            over.set()
            thread.join()
            process.stdin.close()


@dataclass(slots=True)
class Talker:
    http: httpx.Client
    conversation: str = ""
    asked: int = 0

    def turn(self) -> float:
        """Seconds; a new conversation is begun, unmeasured, after every ten turns."""
        if self.asked % 10 == 0:
            made = self.http.post("/conversations", json={"alias": ALIAS})
            self.conversation = made.raise_for_status().json()["id"]
        self.asked += 1
        body = {"model": ALIAS, "conversation": self.conversation, "input": "Hello.", "max_output_tokens": 8}
        began = time.perf_counter()
        self.http.post("/responses", json=body).raise_for_status()
        return time.perf_counter() - began


def measure_overhead(fleet: BenchFleet, engine: Simulated) -> float:
    """Milliseconds that a turn through the service takes longer than what it asks of its engine, by medians of rounds in turn."""
    added = []
    with httpx.Client(trust_env=False, timeout=60) as http, client(fleet, fleet.deployment.url) as ours:
        talker = Talker(ours)
        for _ in range(3):
            talker.turn()
        for number in range(ROUNDS):
            through = statistics.median(talker.turn() for _ in range(OF_EACH))
            direct = statistics.median(timed(engine, http, number) for _ in range(OF_EACH))
            added.append((through - direct) * 1000)
    return statistics.median(added)


def timed(engine: Simulated, http: httpx.Client, number: int) -> float:
    began = time.perf_counter()
    engine.answer(http, number)
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    turns_per_s: float
    """Of one process of the API, all else on the same processors."""
    service_cpu_ms: float
    """Of that process, for a turn."""


def measure_rate(fleet: BenchFleet, engine: Simulated) -> Rate:
    """Prints whose time a turn takes."""
    parts: dict[str, Callable[[], list[psutil.Process]]] = {
        "the service": lambda: processes("-m service"),
        "PostgreSQL": lambda: processes("postgres"),
        "the engine": lambda: [psutil.Process(engine.pid)],
        "the clients": lambda: [psutil.Process()],
    }
    before = {name: cpu_s(found()) for name, found in parts.items()}
    turns, took = talk(fleet, fleet.deployment.url, TALK_S)
    each = {name: (cpu_s(found()) - before[name]) * 1000 / turns for name, found in parts.items()}
    shares = ", ".join(f"{name} {ms:.1f} ms" for name, ms in each.items())
    print(f"{turns / took:.0f} turns/s; CPU of each: {shares}", flush=True)
    return Rate(turns_per_s=turns / took, service_cpu_ms=each["the service"])


def print_profile(fleet: BenchFleet, folder: Path) -> None:
    """Of a process of the API under a profiler, which slows it: shares, not seconds. What its start takes is left out."""
    started, talked = profiled(fleet, folder, 0.0), profiled(fleet, folder, PROFILED_S)
    shares = {part: took - started.get(part, 0.0) for part, took in talked.items()}
    shares.pop("waiting", None)
    whole = sum(shares.values())
    most = sorted(shares.items(), key=lambda one: -one[1])[:12]
    print("where the service's time goes: " + ", ".join(f"{name} {took / whole:.0%}" for name, took in most))


def profiled(fleet: BenchFleet, folder: Path, talk_s: float) -> dict[str, float]:
    """Seconds of each package's own."""
    found, port = folder / f"service-{talk_s:.0f}.prof", find_free_port()
    env = dict(os.environ) | fleet.deployment.settings() | {"EVERTURN_PORT": str(port)}
    command = [sys.executable, "-m", "cProfile", "-o", str(found), "-m", "service"]
    with (folder / "profiled.log").open("w") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until_up(url)
            if talk_s:
                talk(fleet, url, talk_s)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()
    shares = dict[str, float]()
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = pstats.Stats(str(found)).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, own_s, _, _) in stats.items():
        part = package(file, name)
        shares[part] = shares.get(part, 0.0) + own_s
    return shares


def package(file: str, name: str) -> str:
    if "poll" in name and "select" in name:
        return "waiting"
    if "site-packages/" in file:
        return file.partition("site-packages/")[2].split("/")[0].removesuffix(".py")
    if "/service/" in file:
        return "service/" + file.rpartition("/service/")[2].split("/")[0].removesuffix(".py")
    return "built in" if file.startswith(("~", "<")) else "standard library"


def talk(fleet: BenchFleet, url: str, seconds: float) -> tuple[int, float]:
    """How many turns were answered, and in how many seconds."""
    over, counts, failures = time.monotonic() + seconds, list[int](), list[BaseException]()

    def talker() -> None:
        try:
            with client(fleet, url) as http:
                one = Talker(http)
                while time.monotonic() < over:
                    one.turn()
                counts.append(one.asked)
        except httpx.HTTPError as error:
            failures.append(error)

    began = time.monotonic()
    threads = [threading.Thread(target=talker) for _ in range(TALKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"{len(failures)} of {TALKERS} talkers failed: {failures[0]!r}")
    return sum(counts), time.monotonic() - began


def client(fleet: BenchFleet, url: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {fleet.deployment.keys.tenant_key}"}
    return httpx.Client(base_url=f"{url}/v1", headers=headers, trust_env=False, timeout=60)


def wait_until_up(url: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", trust_env=False).is_success:
                return
        time.sleep(0.1)
    raise SystemExit("the service under the profiler did not come up")


def processes(part: str) -> list[psutil.Process]:
    """Of this benchmark's own tree."""
    found = psutil.Process().children(recursive=True)
    return [one for one in found if part in " ".join(told(one))]


def told(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def cpu_s(found: list[psutil.Process]) -> float:
    """With that of children that have ended: each connection to PostgreSQL is served by one."""
    total = 0.0
    for one in found:
        with suppress(psutil.Error):
            times: Any = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
