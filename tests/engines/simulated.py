"""A stand-in for vLLM with our connector: the same wire over real HTTP, and a model whose words come from its KV.

Each token moves a state, keyed by the weights and the request's adapter; the state after the prompt chooses the answer. A stored artifact is the
row of states that its producer went through, so KV made under other weights, or of other tokens, changes the words.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, Self
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from service.domain.adapter import effective
from service.domain.artifact import ArtifactId, BootId, MadeBy, RefusalReason
from service.domain.evidence import (
    BOOT_HEADER,
    REVISION_HEADER,
    TOLD_KEY,
    Evidence,
    KvRequest,
    Loaded,
    Published,
    Refusal,
)
from service.domain.revision import Descriptor, KvIdentity, TextIdentity, differing_fields
from tests.engines.http_server import HttpServer
from tests.engines.simulated_text import (
    FIRST_LETTER,
    STOP,
    Shown,
    ToldText,
    form,
    letters,
    parse,
    render,
)

FIRST_WORD = 0x200000
"""Above all letters: what is generated is never what the same text would be encoded to."""
WORDS = ("amber", "birch", "cedar", "delta", "ember", "frost", "grove", "haven", "inlet", "jade")
ANSWER_WORDS = 6
BLOCK = 4
KEEP_MS = 4_000_000_000_000
LEFT_TO_COMPUTE = 2


def descriptor(weights: str, *, tokenizer: str = "letters", version: str = "1") -> Descriptor:
    kv = KvIdentity(
        weights=weights,
        quantization="none",
        architecture={"layers": 2},
        position={"rope": 1.0},
        adapter="none",
        compute_dtype="float32",
        kv_dtype="float32",
        kv_scales="none",
        attention_backend="simulated",
        attention_isa="none",
        engine="simulated",
        engine_version=version,
        model_runner="v1",
        block_size=BLOCK,
        kv_layout={"order": "none"},
        shards={"tensor": 1},
        draft_model="none",
        environment={},
        compile_mode="eager",
        serializer_abi=1,
    )
    text = TextIdentity(
        tokenizer=tokenizer,
        tokenizer_libraries={},
        golden_tokens="1",
        chat_template="1",
        history_policy="keep",
        generation_defaults={},
    )
    return Descriptor(kv=kv, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    descriptor: Descriptor
    producer: BootId
    tenant: str
    tokens: tuple[int, ...]
    states: tuple[bytes, ...]
    attempt: str


@dataclass(slots=True, kw_only=True)
class Faults:
    refuse: RefusalReason | None = None
    """Refuses every offer; the request goes on without."""
    corrupt: bool = False
    """Offers fail while they are loaded, and the request with them."""
    corrupt_in_stream: bool = False
    """The same, found only after the answer has begun as a 200."""
    unguarded: bool = False
    """Loads whatever it is offered."""
    abort: int = 0
    """So many requests end at once with reason `aborts_with`."""
    aborts_with: str = "abort"
    die_after: int | None = None
    """The connection breaks after so many words, once."""
    end_after: int | None = None
    """The stream is closed in good order after so many words, and the answer is not finished."""
    hold_after: int | None = None
    """Waits for `release` after so many words, once."""
    release: threading.Event = field(default_factory=threading.Event)
    pause_s: float = 0.0
    """Between words."""
    forget: bool = False
    """Has no evidence of anything."""
    full_render: bool = False
    other_prompt: bool = False
    """Computes on other token ids than it was sent, and says so."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Fields of the evidence to report otherwise."""
    max_model_len: int = 100_000
    says: list[str] = field(default_factory=list)
    """What it answers, one after the other, in place of its words."""
    reasons: bool = False
    """Its answers may begin with reasoning, and it has a parser for that."""
    no_tools: bool = False
    """Its template takes none."""
    no_schemas: bool = False
    """It cannot hold an answer to any."""
    tells_nothing: bool = False
    """Of an answer while it comes: its parsers cannot, or it is of an older release."""


class SimulatedEngine:
    """`store` is shared between engines, as a KV store is."""

    def __init__(
        self,
        weights: str,
        store: MutableMapping[str, Stored],
        *,
        tokenizer: str = "letters",
        version: str = "1",
        boot: str | None = None,
        port: int = 0,
    ) -> None:
        self.descriptor = descriptor(weights, tokenizer=tokenizer, version=version)
        self.adapters: dict[str, str] = {}
        """Digests of those that are loaded, by the names that requests call them."""
        self.contracts: set[str] = set()
        """What its operator has given it."""
        self.boot = BootId(boot or f"boot_{uuid4().hex}")
        self.faults = Faults()
        self.alive = True
        self.prompts: list[tuple[int, ...]] = []
        self.requests: list[dict[str, Any]] = []
        self.left: list[str] = []
        """Attempts whose client went away before their end."""
        self.at: Callable[[str], None] = lambda _: None
        """Called at each step of its work, by the step's name: render, generate, word, publish, published, attempts."""
        self._store = store
        self._evidence: dict[str, Evidence] = {}
        self._publishing: set[str] = set()
        self._port = port

    @cached_property
    def _server(self) -> HttpServer:
        """Bound when it is first needed: a twin that is only asked what it would have said holds no port."""
        routes = [
            Route("/everturn/identity", self._identity),
            Route("/everturn/render", self._render, methods=["POST"]),
            Route("/everturn/parse", self._parse, methods=["POST"]),
            Route("/everturn/attempts/{attempt}", self._attempt),
            Route("/inference/v1/generate", self._generate, methods=["POST"]),
        ]
        return HttpServer(Starlette(routes=routes), port=self._port)

    @property
    def revision(self) -> str:
        return self.descriptor.digest

    @property
    def address(self) -> str:
        return self._server.url

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.faults.release.set()
        self._server.stop()

    def computed_under(self, model: str | None) -> Descriptor:
        return effective(self.descriptor, self.adapters.get(model or "", "none"))

    def kill(self) -> None:
        """Connections break off, and new ones are refused."""
        self.alive = False
        self._server.kill()

    def answer(
        self, prompt: Sequence[int], states: Sequence[bytes] = (), *, model: str | None = None
    ) -> list[int]:
        """What comes of a prompt, with the states of a loaded prefix or cold; the stop token last."""
        return self._answer(self.computed_under(model), prompt, states)

    def _answer(self, own: Descriptor, prompt: Sequence[int], states: Sequence[bytes]) -> list[int]:
        if self.faults.says:
            return [*letters(self.faults.says.pop(0)), STOP]
        state, output = states_of(own, prompt, states)[-1], list[int]()
        for _ in range(ANSWER_WORDS):
            output.append(FIRST_WORD + state[0] % len(WORDS))
            state = _next(own, state, output[-1])
        return [*output, STOP]

    def cold_text(self, prompt: Sequence[int], *, model: str | None = None) -> str:
        return "".join(text_of(token) for token in self.answer(prompt, model=model))

    async def _identity(self, _: Request) -> Response:
        return JSONResponse(
            {
                "boot": self.boot,
                "revision": self.revision,
                "descriptor": self.descriptor.to_json(),
                "stop_token_ids": [STOP],
                "max_model_len": self.faults.max_model_len,
            }
        )

    async def _render(self, request: Request) -> Response:
        body = await request.json()
        if (mismatch := self._mismatch(request, body)) is not None:
            return mismatch
        self.at("render")
        carried, tools = body["carried"], body.get("tools", ())
        if tools and self.faults.no_tools:
            return _not_taken("The template takes no tools.", "tools")
        if body.get("response_format") and self.faults.no_schemas:
            return _not_taken("No answer can be held to this schema.", "text.format.schema")
        if carried is None or self.faults.full_render:
            ids, mode = render(body["messages"], tools), "full"
        else:
            closing = [] if carried["last_token"] == STOP else [STOP]
            ids, mode = [*closing, *render(body["messages"][carried["messages"] :])], "delta"
        shape = form(body, reasons=self.faults.reasons)
        rendered = {"token_ids": ids, "mode": mode, "reason": "simulated", "form": shape}
        return JSONResponse(rendered | {"max_model_len": self.faults.max_model_len})

    async def _parse(self, request: Request) -> Response:
        body = await request.json()
        return self._mismatch(request, body) or JSONResponse(parse(body))

    async def _attempt(self, request: Request) -> Response:
        attempt = request.path_params["attempt"]
        self.at("attempts")
        left = float(request.query_params.get("wait_s", 0))
        while left > 0 and (attempt not in self._evidence or attempt in self._publishing):
            await asyncio.sleep(0.01)
            left -= 0.01
        if attempt not in self._evidence or self.faults.forget:
            return JSONResponse({"error": {"message": "unknown attempt"}}, status_code=404)
        return JSONResponse(self._evidence[attempt].to_json() | self.faults.evidence)

    async def _generate(self, request: Request) -> Response:
        body = await request.json()
        if (mismatch := self._mismatch(request, body)) is not None:
            return mismatch
        self.at("generate")
        prompt = tuple(body["token_ids"])
        if len(prompt) >= self.faults.max_model_len:
            refused = {"error": {"message": "the prompt is too long", "code": 400}}
            if body["stream"]:  # vLLM looks at the prompt only once the stream has begun
                return StreamingResponse(iter([f"data: {json.dumps(refused)}\n\n"]))
            return JSONResponse(refused, status_code=400)
        kv = KvRequest.from_params(body["kv_transfer_params"])
        assert kv is not None
        self.prompts.append(prompt)
        self.requests.append(body)
        own = self.computed_under(body.get("model"))
        loaded, refusal, states = self._admit(own, kv, prompt)
        self._evidence[kv.attempt] = Evidence(
            attempt=kv.attempt,
            boot=self.boot,
            revision=own.digest,
            prompt_tokens=len(prompt),
            loaded=loaded,
            refusal=refusal,
        )
        if kv.publish is not None:
            self._publishing.add(kv.attempt)
        if self.faults.corrupt and kv.offer is not None and not self.faults.corrupt_in_stream:
            return JSONResponse({"error": {"message": "KV load failure"}}, status_code=500)
        room, asked = self.faults.max_model_len - len(prompt), body["sampling_params"].get("logprobs")
        most = min(body["sampling_params"]["max_tokens"] or room, room)
        if body["stream"]:
            telling = ToldText(body[TOLD_KEY]) if TOLD_KEY in body and not self.faults.tells_nothing else None
            words = self._watched(kv.attempt, self._stream(own, kv, prompt, states, most, asked, telling))
            return StreamingResponse(words, media_type="text/event-stream")
        output = self._answer(own, prompt, states)[:most]
        self._publish(own, kv, prompt, states)
        choice = _choice(output, "length" if output[-1] != STOP else "stop")
        return JSONResponse({"choices": [choice], "prompt_token_ids": self._echo(prompt)})

    async def _watched(self, attempt: str, words: AsyncIterator[str]) -> AsyncIterator[str]:
        try:
            async for word in words:
                yield word
        except (asyncio.CancelledError, GeneratorExit):
            self.left.append(attempt)
            raise

    async def _stream(
        self,
        own: Descriptor,
        kv: KvRequest,
        prompt: tuple[int, ...],
        states: Sequence[bytes],
        most: int,
        asked: int | None,
        telling: ToldText | None,
    ) -> AsyncIterator[str]:
        if self.faults.abort > 0:
            self.faults.abort -= 1
            yield _line(_choice([], self.faults.aborts_with))
            yield "data: [DONE]\n\n"
            return
        if self.faults.corrupt and kv.offer is not None:
            yield 'data: {"error": {"message": "KV load failure", "code": 500}}\n\n'
            yield "data: [DONE]\n\n"
            return
        output = self._answer(own, prompt, states)[:most]
        for number, token in enumerate(output):
            self.at("word")
            if self.faults.die_after == number:
                self.faults.die_after = None
                msg = "the engine dies here"
                raise ConnectionAbortedError(msg)
            if self.faults.end_after == number:
                break
            if self.faults.hold_after == number:
                self.faults.hold_after = None
                await asyncio.to_thread(self.faults.release.wait)
            await asyncio.sleep(self.faults.pause_s)
            last = number == len(output) - 1
            reason = None if not last else "stop" if token == STOP else "length"
            told = [] if telling is None else telling.add(text_of(token), finished=last)
            yield _line(_choice([token], reason, asked), None if number else self._echo(prompt), told)
        self._publish(own, kv, (*prompt, *output[:-1]), states)
        yield "data: [DONE]\n\n"

    def _echo(self, prompt: tuple[int, ...]) -> list[int]:
        return [*prompt[:-1], prompt[-1] + 1] if self.faults.other_prompt else list(prompt)

    def _admit(
        self, own: Descriptor, kv: KvRequest, prompt: tuple[int, ...]
    ) -> tuple[Loaded | None, Refusal | None, Sequence[bytes]]:
        if kv.offer is None:
            return None, None, ()
        stored = self._store.get(kv.offer)
        if self.faults.corrupt:
            return None, _refusal(kv.offer, RefusalReason.CHECKSUM_MISMATCH, stored), ()
        if self.faults.refuse is not None:
            return None, _refusal(kv.offer, self.faults.refuse, stored), ()
        if stored is None:
            return None, _refusal(kv.offer, RefusalReason.MANIFEST_MISSING, None), ()
        contract = kv.contract if kv.contract in self.contracts else None
        if stored.descriptor.digest == own.digest:
            contract = None
        elif contract is None and not self.faults.unguarded:
            differing = differing_fields(own, stored.descriptor)
            return None, _refusal(kv.offer, RefusalReason.REVISION_MISMATCH, stored, differing), ()
        if stored.tenant != kv.tenant and not self.faults.unguarded:
            return None, _refusal(kv.offer, RefusalReason.TENANT_MISMATCH, stored), ()
        usable = min(len(stored.tokens), len(prompt) - LEFT_TO_COMPUTE) // BLOCK * BLOCK
        while usable > 0 and stored.tokens[:usable] != prompt[:usable]:
            usable -= BLOCK
        if usable <= 0:
            return None, _refusal(kv.offer, RefusalReason.TOKEN_MISMATCH, stored), ()
        loaded = Loaded(
            artifact=ArtifactId(kv.offer),
            revision=stored.descriptor.digest,
            producer=stored.producer,
            tokens=usable,
            bytes=usable,
            seconds=0.001,
            contract=contract,
        )
        return loaded, None, stored.states[:usable]

    def _publish(
        self, own: Descriptor, kv: KvRequest, tokens: tuple[int, ...], states: Sequence[bytes]
    ) -> None:
        if kv.publish is None:
            return
        self.at("publish")
        whole = len(tokens) // BLOCK * BLOCK
        rows = states_of(own, tokens, states)[1:]
        self._store[kv.publish] = Stored(
            descriptor=own,
            producer=self.boot,
            tenant=kv.tenant,
            tokens=tokens[:whole],
            states=tuple(rows[:whole]),
            attempt=kv.attempt,
        )
        self.at("published")
        published = Published(
            artifact=kv.publish,
            revision=own.digest,
            producer=self.boot,
            made_by=MadeBy.PREFILL,
            tokens=whole,
            blocks=whole // BLOCK,
            bytes=whole,
            expires_ms=KEEP_MS,
            tip="ab" * 32,
        )
        known = self._evidence[kv.attempt]
        self._evidence[kv.attempt] = Evidence(
            attempt=known.attempt,
            boot=known.boot,
            revision=known.revision,
            prompt_tokens=known.prompt_tokens,
            loaded=known.loaded,
            refusal=known.refusal,
            published=published,
        )
        self._publishing.discard(kv.attempt)

    def _mismatch(self, request: Request, body: dict[str, Any]) -> Response | None:
        wanted, boot = request.headers[REVISION_HEADER], request.headers[BOOT_HEADER]
        own = self.computed_under(body.get("model")).digest
        if wanted == own and boot == self.boot:
            return None
        error = {
            "type": "revision_mismatch",
            "wanted": wanted,
            "measured": own,
            "differing_fields": ["weights"],
        }
        return JSONResponse({"error": error}, status_code=409)


def states_of(own: Descriptor, tokens: Sequence[int], loaded: Sequence[bytes] = ()) -> list[bytes]:
    """The state before each token and after the last; those of a loaded prefix are taken as they are."""
    rows = [b"start", *loaded]
    for token in tokens[len(loaded) :]:
        rows.append(_next(own, rows[-1], token))
    return rows


def _next(own: Descriptor, state: bytes, token: int) -> bytes:
    return sha256(f"{own.kv.weights} {own.kv.adapter} {token} ".encode() + state).digest()


def text_of(token: int) -> str:
    if token >= FIRST_WORD:
        return f"{WORDS[token - FIRST_WORD]} "
    return "" if token < FIRST_LETTER else chr(token - FIRST_LETTER)


def _choice(tokens: Sequence[int], finish_reason: str | None, asked: int | None = None) -> dict[str, Any]:
    text = "".join(map(text_of, tokens))
    return {
        "index": 0,
        "token_ids": list(tokens),
        "text": text,
        "finish_reason": finish_reason,
        "logprobs": None if asked is None else {"content": [_logprob(token, asked) for token in tokens]},
    }


def _logprob(token: int, asked: int) -> dict[str, Any]:
    """As vLLM does: at least one candidate, the sampled one first."""
    others = [{"token": f"other {number}", "logprob": -1.5 - number} for number in range(1, asked)]
    sampled = {"token": text_of(token), "logprob": -0.25}
    return sampled | {"top_logprobs": [sampled, *others]}


def _not_taken(message: str, param: str) -> JSONResponse:
    error = {"type": "invalid_request", "message": message, "param": param}
    return JSONResponse({"error": error}, status_code=400)


def _line(choice: dict[str, Any], echo: list[int] | None = None, told: Sequence[Shown] = ()) -> str:
    document = {"request_id": "r", "choices": [choice], "prompt_token_ids": echo}
    return f"data: {json.dumps(document | ({TOLD_KEY: told} if told else {}))}\n\n"


def _refusal(
    offer: str, reason: RefusalReason, stored: Stored | None, differing: tuple[str, ...] = ()
) -> Refusal:
    return Refusal(
        artifact=offer,
        reason=reason,
        detail="simulated",
        differing=differing,
        artifact_revision=stored.descriptor.digest if stored else None,
        artifact_producer=stored.producer if stored else None,
    )
