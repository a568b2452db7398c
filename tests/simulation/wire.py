"""The network between processes and engines: what a request meets on its way, and what an engine answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from service.domain.artifact import BootId
from service.domain.evidence import BOOT_HEADER, REVISION_HEADER
from service.domain.plan import EngineRole
from service.domain.revision import Descriptor
from service.engine import protocol
from tests.engines.simulated import FIRST_WORD, text_of
from tests.engines.simulated_text import FIRST_LETTER, STOP, form, parse, render
from tests.simulation.engine import Engine, LoadFailed, Status, reason_to_finish
from tests.simulation.faults import Faults, Moment
from tests.simulation.http import Asked, Request, Response
from tests.simulation.process import Process

OTHER = 0x1000
"""By which the other tokenizer's letters are moved."""
FAULTS_OF_AN_ENGINE = ("die", "hang", "abort", "cut", "forget", "skew")
SAVING_S = 5
"""Times the network's latency."""

asking: ContextVar[tuple[str, ...]] = ContextVar("asking", default=())
"""The steps that whoever sends a request is at."""


@dataclass(slots=True)
class Host:
    """An address, and the engine that answers there now."""

    address: str
    own: Descriptor
    """What is started here, unless something else is by mistake."""
    role: EngineRole
    engine: Engine | None
    process: Process
    mistaken: Descriptor | None = None
    """What is started here next."""
    saves: set["asyncio.Task[None]"] = field(default_factory=set)

    @property
    def up(self) -> Engine | None:
        return self.engine if self.process.alive else None


class Network:
    def __init__(self, faults: Faults, *, max_model_len: int = 100_000, token_s: float = 0.0005) -> None:
        """Args: token_s: of a prefill."""
        self.faults = faults
        self.max_model_len = max_model_len
        self.token_s = token_s
        self.hosts: dict[str, Host] = {}
        self.requests = 0

    def asked_by(self, process: Process) -> Asked:
        return partial(self.ask, process)

    async def ask(self, process: Process, request: Request) -> Response:
        """Raises: httpx.TransportError."""
        path = request.path
        names = _steps(path)
        await process.gate()
        if self.faults.meet(process, names, Moment.BEFORE).value != "go on":
            await process.gate()
            raise httpx.ConnectError("cut off")
        await asyncio.sleep(self.faults.latency_s())
        host = self.hosts.get(request.host)
        if host is None or host.up is None:
            await process.gate()
            raise httpx.ConnectError("refused")
        self.requests += 1
        response = await self._answered(host, request, path)
        if self.faults.meet(process, names, Moment.AFTER).value != "go on":
            await process.gate()
            raise httpx.ReadError("cut off")
        await process.gate()
        return response

    async def _answered(self, host: Host, request: Request, path: str) -> Response:
        engine = host.up
        assert engine is not None
        await self._strike(host, request)
        if path == protocol.IDENTITY_PATH:
            return Response(
                200, {"boot": engine.boot, "revision": engine.revision, "max_model_len": self.max_model_len}
            )
        if path.startswith(protocol.ATTEMPTS_PATH):
            return await self._evidence(host, engine, request)
        body = request.body
        if (wrong := _mismatch(engine, request)) is not None:
            return wrong
        if path == protocol.PARSE_PATH:
            return Response(200, parse(body))
        if path == protocol.RENDER_PATH:
            return Response(200, _rendered(engine, body))
        return await self._generated(host, engine, body, request)

    async def _strike(self, host: Host, request: Request) -> None:
        """What befalls the engine on its way to this answer."""
        struck = self.faults.strikes(self.faults.rates.engine, "engine", FAULTS_OF_AN_ENGINE)
        if struck is None or host.engine is None:
            return
        self.faults.say(f"ENGINE {struck} {host.engine.boot}")
        if struck == "die":
            host.process.kill()
            raise httpx.ReadError("the engine died")
        if struck == "hang":
            host.process.stopped_until_s = asyncio.get_running_loop().time() + 20
        elif struck == "skew":
            host.engine.skew_ms += self.faults.random.choice((-3_600_000, 3_600_000, 90_000_000))
        elif struck == "forget":
            host.engine.reports.evidence.clear()
        elif struck == "abort":
            raise httpx.RemoteProtocolError("aborted")
        else:
            raise httpx.ReadError("cut")
        await _patient(host, request)

    async def _evidence(self, host: Host, engine: Engine, request: Request) -> Response:
        attempt, left = request.path.rpartition("/")[2], request.wait_s
        reports = engine.reports
        while (
            left > 0
            and host.up is engine
            and (attempt not in reports.evidence or attempt in reports.publishing)
        ):
            await asyncio.sleep(0.05)
            left -= 0.05
        if host.up is not engine:
            raise httpx.ReadError("the engine is gone")
        if attempt not in reports.evidence:
            return Response(404, {"error": {"message": "unknown attempt"}})
        return Response(200, reports.evidence[attempt].to_json())

    async def _generated(
        self, host: Host, engine: Engine, body: dict[str, Any], request: Request
    ) -> Response:
        if len(body["token_ids"]) >= self.max_model_len:
            return Response(400, {"error": {"message": "the prompt is too long"}})
        await asyncio.sleep(self.faults.latency_s() + self.token_s * len(body["token_ids"]))
        await _patient(host, request)
        if engine.store.slow_s:
            await asyncio.sleep(engine.store.slow_s)
        if host.up is not engine:
            raise httpx.ReadError("the engine is gone")
        try:
            begun, output = engine.begin(body)
        except LoadFailed as failed:
            return Response(500, {"error": {"message": f"KV load failure: {failed}"}})
        if not body["stream"]:
            self._finish(host, engine, begun, output)
            choice = {"token_ids": list(output), "finish_reason": reason_to_finish(output).value}
            return Response(200, {"choices": [choice], "prompt_token_ids": body["token_ids"]})
        words = self.words(host, engine, begun, output, request)
        return Response(200, words=words)

    def _finish(self, host: Host, engine: Engine, begun: Any, output: tuple[int, ...]) -> None:
        job = engine.finish(begun, reason_to_finish(output))
        if job is None:
            return

        async def save() -> None:
            await asyncio.sleep(self.faults.latency_s() * SAVING_S + engine.store.slow_s)
            await host.process.gate()
            engine.save(begun, job)

        task = asyncio.create_task(save())
        host.saves.add(task)
        task.add_done_callback(host.saves.discard)

    async def words(
        self, host: Host, engine: Engine, begun: Any, output: tuple[int, ...], request: Request
    ) -> AsyncIterator[str]:
        finished = False
        try:
            for number, token in enumerate(output):
                await asyncio.sleep(self.faults.latency_s() / 4)
                await self._strike(host, request)
                if host.up is not engine:
                    raise httpx.ReadError("the engine is gone")
                last = number == len(output) - 1
                reason = reason_to_finish(output).value if last else None
                score = {"token": text_of(token), "logprob": -0.5, "top_logprobs": []}
                choice: dict[str, Any] = {
                    "token_ids": [token],
                    "text": text_of(token),
                    "finish_reason": reason,
                }
                choice["logprobs"] = {"content": [score]}
                document: dict[str, Any] = {"choices": [choice]}
                if number == 0:
                    document["prompt_token_ids"] = list(begun.prompt_token_ids)
                if last:
                    finished = True
                    self._finish(host, engine, begun, output)
                yield f"data: {json.dumps(document)}"
            yield "data: [DONE]"
        finally:
            if not finished and host.up is engine:
                engine.finish(begun, Status.FINISHED_ABORTED)


async def _patient(host: Host, request: Request) -> None:
    """Until the engine goes on, or its client has had enough."""
    loop = asyncio.get_running_loop()
    wait_s = host.process.stopped_until_s - loop.time()
    if wait_s > request.silence_s:
        await asyncio.sleep(request.silence_s)
        raise httpx.ReadTimeout("silent for too long")
    if wait_s > 0:
        await asyncio.sleep(wait_s)
    if host.up is None:
        raise httpx.ReadError("the engine is gone")


def _steps(path: str) -> list[str]:
    kind = "attempts" if path.startswith(protocol.ATTEMPTS_PATH) else path.rpartition("/")[2]
    return [f"engine.{kind}", *asking.get()]


def _mismatch(engine: Engine, request: Request) -> Response | None:
    """As the connector's middleware has it, before prefill."""
    wanted, boot = request.headers[REVISION_HEADER], BootId(request.headers[BOOT_HEADER])
    if wanted == engine.revision and boot == engine.boot:
        return None
    error = {
        "type": "revision_mismatch",
        "wanted": wanted,
        "measured": engine.revision,
        "differing_fields": ["weights"],
    }
    return Response(409, {"error": error})


def _rendered(engine: Engine, body: dict[str, Any]) -> dict[str, Any]:
    carried = body["carried"]
    if carried is None:
        ids, mode = render(body["messages"], body.get("tools", ())), "full"
    else:
        closing = [] if carried["last_token"] == STOP else [STOP]
        ids, mode = [*closing, *render(body["messages"][carried["messages"] :])], "delta"
    shift = _shift(engine.own)
    ids = [token + shift if FIRST_LETTER <= token < OTHER else token for token in ids]
    shape = form(body, reasons=False)
    return {"token_ids": ids, "mode": mode, "reason": "simulated", "form": shape}


def is_of(own: Descriptor) -> Callable[[int], bool]:
    """Whether a token id is of the engine's own tokenizer: a letter's, or one that any model may say."""
    first = FIRST_LETTER + _shift(own)
    return lambda token: token < FIRST_LETTER or token >= FIRST_WORD or first <= token < first + OTHER


def _shift(own: Descriptor) -> int:
    return 0 if own.text.tokenizer == "letters" else OTHER
