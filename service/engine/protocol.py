"""The engine's wire, built and parsed without any I/O; the senders in client are a few lines each."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from service.domain.artifact import BootId
from service.domain.conversation import Item
from service.domain.errors import EngineFailed, EverturnError, InvalidInput, RevisionMismatch
from service.domain.events import Role, Sampling, TenantId, TurnAsked
from service.domain.evidence import (
    BOOT_HEADER,
    REVISION_HEADER,
    TOLD_HEADER,
    TOLD_KEY,
    Evidence,
    KvRequest,
)
from service.domain.items import ItemKind
from service.domain.plan import Engine
from service.domain.revision import RevisionDigest
from service.domain.scores import Candidate, TokenLogprob
from service.domain.telling import Fragment
from service.engine.messages import as_messages, wanted

GENERATE_PATH = "/inference/v1/generate"
RENDER_PATH = "/everturn/render"
PARSE_PATH = "/everturn/parse"
IDENTITY_PATH = "/everturn/identity"
ATTEMPTS_PATH = "/everturn/attempts/"

LEAST_TOP_P = 1e-6
"""vLLM refuses 0, which OpenAI's API allows."""

NOT_TAKEN = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
NAMED_BY_CLIENTS = {
    "tools": "unsupported_tools",
    "tool_choice": "invalid_tool_choice",
    "text.format": "invalid_text_format",
    "text.format.schema": "invalid_json_schema",
}
"""Fields that our middleware refuses, which clients know by these names; the code that a turn then fails with."""
NOT_AN_ANSWER = frozenset({"abort", "error"})
"""Reasons to finish that leave no answer, however many tokens came before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSpec:
    prompt: tuple[int, ...]
    sampling: Sampling
    kv: KvRequest
    revision: RevisionDigest
    boot: BootId
    cache_salt: str
    model: str | None = None
    """The adapter's name at this engine, where the revision has one."""
    form: "Form | None" = None
    asked: TurnAsked | None = None
    """By what the answer is to be told apart while it is generated, where its form says that it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of each sampled token, where the sampling asks for them."""
    prompt: tuple[int, ...] | None = None
    """The ids that the engine took for the prompt; a stream's first chunk has them."""
    told: tuple[Fragment, ...] = ()
    """What the engine's parsers make of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The engine has closed the stream by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How the engine is to hold the answer to what was asked for."""

    structured_outputs: Mapping[str, Any] | None
    skip_special_tokens: bool
    parsed: bool
    """Only its parsers can tell what the answer's text is."""
    reasoning_ended: bool | None = None
    """Before its first token; what is forced is forced after reasoning. None where the engine is to look at the prompt."""


PLAIN = Form(structured_outputs=None, skip_special_tokens=True, parsed=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    reasoning: str
    reasoning_tokens: int
    content: str
    calls: tuple[tuple[str, str], ...]
    """Function and arguments of each."""


class RenderMode(StrEnum):
    FULL = "full"
    DELTA = "delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The window that the next prompt extends: how many leading items it holds, and its last id."""

    items: int
    last_token: int
    answer: str | None = None
    """What the model wrote last, where the items have it taken apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """In mode delta, the ids that follow the carried window; in mode full, the whole prompt."""

    token_ids: tuple[int, ...]
    mode: RenderMode
    reason: str
    form: Form = PLAIN
    max_model_len: int | None = None
    """A prompt must be shorter. None of an engine of an older release."""


def cache_salt(revision: RevisionDigest, tenant: TenantId) -> str:
    """Keeps the engine's own prefix cache from crossing tenants or revisions."""
    return sha256(f"{revision}\n{tenant}".encode()).hexdigest()


def identity_headers(revision: RevisionDigest, boot: BootId) -> dict[str, str]:
    return {REVISION_HEADER: revision, BOOT_HEADER: boot}


def engine_headers(engine: Engine) -> dict[str, str]:
    return identity_headers(engine.revision, engine.boot)


def build_generate(spec: GenerateSpec, *, stream: bool) -> tuple[dict[str, str], dict[str, Any]]:
    """Headers and body. The seed comes from the attempt's turn, so that a second attempt can repeat the first."""
    turn = spec.kv.attempt.rpartition(".")[0]
    form = spec.form or PLAIN
    sampling: dict[str, Any] = {
        "max_tokens": spec.sampling.max_output_tokens,
        "temperature": spec.sampling.temperature,
        "top_p": max(spec.sampling.top_p, LEAST_TOP_P),
        "seed": int.from_bytes(sha256(turn.encode()).digest()[:4], "big"),
        "skip_special_tokens": form.skip_special_tokens,
    }
    if form.structured_outputs is not None:
        sampling["structured_outputs"] = form.structured_outputs
    if spec.sampling.top_logprobs is not None:
        sampling["logprobs"] = spec.sampling.top_logprobs
    body = {
        "request_id": spec.kv.attempt,
        "token_ids": list(spec.prompt),
        "sampling_params": sampling,
        "output_mode": "text",
        "return_token_ids": True,
        "stream": stream,
        "cache_salt": spec.cache_salt,
        "kv_transfer_params": spec.kv.to_params(),
    } | _model(spec.model)
    if form.structured_outputs is not None and form.reasoning_ended is not None:
        body["reasoning_ended"] = form.reasoning_ended
    headers = identity_headers(spec.revision, spec.boot)
    if stream and form.parsed:
        return headers | {TOLD_HEADER: "1"}, body | {TOLD_KEY: wanted(spec.asked)}
    return headers, body


def parse_chunk(line: str) -> Chunk | Done | None:
    """One line of the stream; None for lines that carry nothing.

    Raises:
        EngineFailed: the engine gave the request up, also in the middle of a 200.
        InvalidInput: vLLM looks at the prompt only once the stream has begun.
    """
    if not line.startswith("data:"):
        return None
    data = line.removeprefix("data:").strip()
    if data == "[DONE]":
        return Done()
    document = _object(data)
    if "error" in document:
        error = document["error"]
        if isinstance(error, Mapping) and error.get("code") in NOT_TAKEN:
            raise failure(error["code"], data.encode())
        raise EngineFailed(f"The engine gave up mid-stream: {_engine_words(document)}.")
    return _chunk(document) if document.get("choices") else None


def parse_answer(status: int, body: bytes) -> Chunk:
    """The whole answer of a request that was not streamed.

    Raises:
        EngineFailed, RevisionMismatch, InvalidInput: as `failure` has it.
    """
    document = _accepted(status, body)
    try:
        return _chunk(document)
    except (KeyError, IndexError) as error:
        raise EngineFailed("The engine's answer has no choices.") from error


def build_render(
    items: Sequence[Item],
    carried: Carried | None,
    model: str | None = None,
    asked: TurnAsked | None = None,
) -> dict[str, Any]:
    messages, covered = as_messages(items, carried.items if carried else 0)
    if asked is not None and asked.instructions:
        messages, covered = (
            [{"role": Role.SYSTEM.value, "content": asked.instructions}, *messages],
            covered + 1,
        )
    window = None
    if carried is not None:
        answer = {} if carried.answer is None else {"answer": carried.answer}
        window = {"messages": covered, "last_token": carried.last_token} | answer
    return _model(model) | {"messages": messages, "carried": window} | wanted(asked)


def build_parse(
    text: str, token_ids: Sequence[int], model: str | None, asked: TurnAsked | None
) -> dict[str, Any]:
    return _model(model) | {"text": text, "token_ids": list(token_ids)} | wanted(asked)


def _model(name: str | None) -> dict[str, str]:
    """Without a name, an engine answers as its base."""
    return {} if name is None else {"model": name}


def parse_render(status: int, body: bytes) -> Rendered:
    """Raises: EngineFailed, RevisionMismatch, InvalidInput: as `failure` has it."""
    document = _accepted(status, body)
    try:
        return Rendered(
            token_ids=tuple(document["token_ids"]),
            mode=RenderMode(document["mode"]),
            reason=document["reason"] or "",
            form=_form(document),
            max_model_len=_max_model_len(document),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EngineFailed(f"The engine's render cannot be read: {error}.") from error


def _form(document: Mapping[str, Any]) -> Form:
    if not document.get("form"):
        return PLAIN
    return Form(**document["form"], reasoning_ended=document.get("reasoning_ended"))


def parse_parsed(status: int, body: bytes) -> Parsed:
    """Raises: EngineFailed, RevisionMismatch, InvalidInput: as `failure` has it."""
    document = _accepted(status, body)
    try:
        return Parsed(
            reasoning=document["reasoning"] or "",
            reasoning_tokens=document["reasoning_tokens"],
            content=document["content"] or "",
            calls=tuple((call["name"], call["arguments"]) for call in document["calls"]),
        )
    except (KeyError, TypeError) as error:
        raise EngineFailed(f"The engine's reading of its answer cannot be read: {error}.") from error


def parse_max_model_len(status: int, body: bytes) -> int | None:
    return _max_model_len(_accepted(status, body))


def _max_model_len(document: Mapping[str, Any]) -> int | None:
    length = document.get("max_model_len")
    return length if isinstance(length, int) else None


def parse_evidence(status: int, body: bytes) -> Evidence | None:
    """None where the engine knows nothing of the attempt."""
    if status == HTTPStatus.NOT_FOUND:
        return None
    try:
        return Evidence.from_json(_accepted(status, body))
    except (KeyError, TypeError, ValueError) as error:
        raise EngineFailed(f"The engine's evidence cannot be read: {error}.") from error


def failure(status: int, body: bytes) -> EverturnError:
    """What an engine's refusal to answer means: its own failure, another revision, or a prompt it cannot take."""
    try:
        document = _object(body)
    except EngineFailed:
        document = {}
    words = _engine_words(document)
    error = document.get("error")
    named = error if isinstance(error, Mapping) else {}
    if status == HTTPStatus.CONFLICT:
        return RevisionMismatch(
            str(named.get("wanted")), str(named.get("measured")), tuple(named.get("differing_fields") or ())
        )
    if (
        status in NOT_TAKEN
        and named.get("type") == "invalid_request"
        and named.get("param") in NAMED_BY_CLIENTS
    ):
        return InvalidInput(f"{words}.", named["param"], NAMED_BY_CLIENTS[named["param"]])
    if status in NOT_TAKEN:
        return InvalidInput(f"The engine does not take this prompt: {words}.", "input", "invalid_prompt")
    return EngineFailed(f"The engine answered {status}: {words}.")


def _accepted(status: int, body: bytes) -> dict[str, Any]:
    if status != HTTPStatus.OK:
        raise failure(status, body)
    return _object(body)


def _object(data: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise EngineFailed("The engine did not answer in JSON.") from error
    if not isinstance(document, dict):
        raise EngineFailed("The engine did not answer with an object.")
    return document


def check_echo(spec: GenerateSpec, echoed: tuple[int, ...] | None) -> None:
    """The window that goes into the record must be the one that the engine computed on.

    Raises:
        EngineFailed: it took other ids for the prompt, or did not say which.
    """
    if echoed != spec.prompt:
        took = "did not say which prompt it took" if echoed is None else "took other token ids for the prompt"
        raise EngineFailed(f"Engine {spec.boot} {took}.")


def _chunk(document: Mapping[str, Any]) -> Chunk:
    choice, prompt = document["choices"][0], document.get("prompt_token_ids")
    reason = choice.get("finish_reason")
    if reason in NOT_AN_ANSWER:
        raise EngineFailed(f"The engine finished the attempt with '{reason}'.")
    content = (choice.get("logprobs") or {}).get("content") or ()
    return Chunk(
        token_ids=tuple(choice.get("token_ids") or ()),
        text=choice.get("text") or "",
        finish_reason=reason,
        logprobs=tuple(map(_token_logprob, content)),
        prompt=None if prompt is None else tuple(prompt),
        told=tuple(map(_fragment, document.get(TOLD_KEY) or ())),
    )


def _fragment(entry: Any) -> Fragment:
    try:
        kind, function, text = entry
        return Fragment(
            kind=ItemKind(kind), function=None if function is None else str(function), text=str(text)
        )
    except (TypeError, ValueError) as error:
        raise EngineFailed(f"The engine's telling of its answer cannot be read: {error}.") from error


def _token_logprob(entry: Mapping[str, Any]) -> TokenLogprob:
    top = tuple(
        Candidate(other["token"], float(other["logprob"])) for other in entry.get("top_logprobs") or ()
    )
    return TokenLogprob(token=entry["token"], logprob=float(entry["logprob"]), top=top)


def _engine_words(document: Mapping[str, Any]) -> str:
    error = document.get("error")
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or document.get("detail") or "no reason given").rstrip(".")
