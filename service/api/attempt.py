"""One attempt on one engine: what is asked of it, and when its answer may be accepted."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from service.api.answer_parts import parts_of, said
from service.api.prompt import NOTHING, Prompt, carried_window, not_taken, render_to_answer
from service.domain.artifact import ArtifactId
from service.domain.contract import ContractId
from service.domain.errors import EngineFailed, EverturnError, InvalidInput, RevisionMismatch
from service.domain.events import (
    ItemId,
    KvRefused,
    KvSource,
    PlanKind,
    TenantId,
    TurnCompleted,
    TurnParsed,
    TurnPinned,
    TurnScored,
)
from service.domain.evidence import Evidence, KvRequest
from service.domain.plan import Engine
from service.domain.scores import TokenLogprob
from service.domain.telling import Telling, line_of, plain
from service.domain.transcript import Transcript, frame_of
from service.domain.turn import Turn
from service.engine import client
from service.engine.engine_http import EngineHttp
from service.engine.protocol import Carried, GenerateSpec, cache_salt
from service.turn_flow import Split
from service.turn_log import refused_by

EVIDENCE_TRIES = 20
EVIDENCE_PAUSE_S = 0.05
STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """What came of asking another engine to prefill."""

    offer: ArtifactId | None
    """To be offered in the place of what the plan offers."""
    made: bool
    """The offer is what that engine made of this prompt."""
    note: str
    refusal: KvRefused | None
    """Of that engine, of what it was offered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """`turn` has this attempt pinned, and its rebuild if there was one."""

    tenant: TenantId
    turn: Turn
    transcript: Transcript
    pinned: TurnPinned
    engine: Engine
    item: ItemId
    publish: ArtifactId | None
    kv_lease_s: int
    note: str
    """Why the KV is what it is, where nothing better is known."""
    split: Split | None = None
    handed: Handed | None = None

    @property
    def id(self) -> str:
        return f"{self.pinned.turn}.{self.pinned.attempt}"

    @property
    def offer(self) -> ArtifactId | None:
        """After a rebuild, what it made; what was offered to the rebuild is not offered again."""
        if self.handed is not None:
            return self.handed.offer
        rebuilt = self.turn.rebuilt
        if rebuilt is not None:
            return rebuilt.artifact
        return None if self.pinned.plan is PlanKind.REBUILD else self.pinned.offer

    @property
    def prefill_refusal(self) -> KvRefused | None:
        return None if self.handed is None else self.handed.refusal

    @property
    def contract(self) -> ContractId | None:
        return self.pinned.contract if self.offer == self.pinned.offer else None

    @property
    def carried(self) -> Carried | None:
        return carried_window(self.transcript) if self.pinned.carry_tokens else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    completed: TurnCompleted
    refusal: KvRefused | None
    scored: TurnScored | None = None
    """Where the client asked how likely the answer's tokens were."""
    parsed: TurnParsed | None = None

    @property
    def said(self) -> str:
        """The text of its messages."""
        return self.completed.text if self.parsed is None else said(self.parsed.parts)

    @property
    def line(self) -> str:
        """All of it, as its stream tells it."""
        return plain(self.completed.text) if self.parsed is None else line_of(self.parsed.parts)


class AttemptLost(Exception):
    """Nothing of the attempt may be accepted; `cause` says why, and `text` is what it had said."""

    def __init__(self, cause: EverturnError, *, text: str, refusal: KvRefused | None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.text = text
        self.refusal = refusal


HandOver = Callable[[Attempt, Prompt], Awaitable[Handed | None]]


async def run_attempt(
    http: EngineHttp,
    attempt: Attempt,
    on_text: Callable[[str], None],
    hand_over: HandOver | None = None,
    begun: Awaitable[Prompt] | None = None,
) -> Answer:
    """Args:
    on_text: called with the answer's line so far, at every chunk.
    hand_over: has the prompt prefilled elsewhere, where that was planned and is worth it.
    begun: the prompt, where its engine has been asked for it.

    Raises:
        AttemptLost: and another attempt may answer.
        InvalidInput: no engine of the revision would take this prompt.
    """
    text, output, finish, prompt = "", list[int](), "", NOTHING
    scores, telling = list[TokenLogprob](), Telling()
    try:
        prompt = await (begun or _rendered(http, attempt))
        handed = None if hand_over is None else await hand_over(attempt, prompt)
        if handed is not None:
            attempt = replace(attempt, handed=handed, note=handed.note)
        async for chunk in client.stream_generate(http, attempt.engine, _spec(attempt, prompt)):
            output += chunk.token_ids
            scores += chunk.logprobs
            text += chunk.text
            finish = chunk.finish_reason or finish
            for fragment in chunk.told:
                telling.add(fragment)
            on_text(telling.line if prompt.form.parsed else plain(text))
        evidence = checked(attempt, prompt, await _evidence(http, attempt))
        parsed = await _parsed(http, attempt, prompt, text, output, told=telling.line)
    except (EngineFailed, RevisionMismatch) as error:
        raise AttemptLost(error, text=text, refusal=await _refusal(http, attempt)) from error
    except InvalidInput as error:
        raise await not_taken(http, attempt.engine, len(prompt.token_ids), error) from error
    completed = TurnCompleted(
        turn=attempt.pinned.turn,
        attempt=attempt.pinned.attempt,
        item=attempt.item,
        text=text,
        finish_reason=finish,
        extends=prompt.extends,
        prompt_delta=prompt.delta,
        output=tuple(output),
        prompt_tokens=len(prompt.token_ids),
        local_tokens=evidence.local_tokens,
        kv_source=_source(attempt, evidence),
        kv_reason=_reason(attempt, prompt, evidence),
        requested_revision=attempt.pinned.revision,
        engine=evidence.boot,
        engine_revision=attempt.pinned.revision,
        loaded=evidence.loaded,
        published=evidence.published.artifact if evidence.published else None,
        dropped_items=prompt.dropped,
        frame=frame_of(attempt.transcript.asked),
    )
    return Answer(
        completed=completed,
        refusal=refused_by(evidence, attempt.pinned.turn, attempt.pinned.attempt) or attempt.prefill_refusal,
        scored=_scored(attempt, scores, finish),
        parsed=parsed,
    )


def _rendered(http: EngineHttp, attempt: Attempt) -> Awaitable[Prompt]:
    return render_to_answer(http, attempt.engine, attempt.transcript, attempt.carried, attempt.turn.started)


async def _parsed(
    http: EngineHttp, attempt: Attempt, prompt: Prompt, text: str, output: Sequence[int], *, told: str
) -> TurnParsed | None:
    if not prompt.form.parsed:
        return None
    found = await client.parse(http, attempt.engine, text, output, attempt.transcript.asked)
    pinned = attempt.pinned
    return parts_of(pinned.turn, pinned.attempt, attempt.item, found, written=text, told=told)


def _scored(attempt: Attempt, scores: Sequence[TokenLogprob], finish: str) -> TurnScored | None:
    """Without the token that ended the answer, which is no part of its text."""
    pinned, asked = attempt.pinned, attempt.turn.sampling.top_logprobs
    if asked is None:
        return None
    kept = tuple(replace(score, top=score.top[:asked]) for score in scores)
    return TurnScored(turn=pinned.turn, attempt=pinned.attempt, scores=kept[:-1] if finish == STOP else kept)


def checked(attempt: Attempt, prompt: Prompt, evidence: Evidence | None) -> Evidence:
    """The answer's provenance must be known, and be what the attempt was pinned to.

    Raises:
        EngineFailed, RevisionMismatch: nothing may be accepted.
    """
    if evidence is None:
        raise EngineFailed(f"Engine {attempt.engine.boot} has no record of attempt {attempt.id}.")
    if evidence.boot != attempt.pinned.engine or evidence.revision != attempt.pinned.revision:
        raise RevisionMismatch(attempt.pinned.revision, f"{evidence.revision} (boot {evidence.boot})")
    if evidence.prompt_tokens != len(prompt.token_ids):
        raise EngineFailed(
            f"Engine {attempt.engine.boot} answered a prompt of {evidence.prompt_tokens} tokens, "
            f"not the {len(prompt.token_ids)} that it was sent."
        )
    loaded = evidence.loaded
    if (
        loaded is not None
        and loaded.revision != attempt.pinned.revision
        and (loaded.contract is None or loaded.contract != attempt.contract)
    ):
        raise RevisionMismatch(attempt.pinned.revision, f"KV of {loaded.revision}")
    return evidence


def _spec(attempt: Attempt, prompt: Prompt) -> GenerateSpec:
    pinned = attempt.pinned
    return GenerateSpec(
        prompt=prompt.token_ids,
        sampling=attempt.turn.sampling,
        kv=KvRequest(
            attempt=attempt.id,
            tenant=attempt.tenant,
            offer=attempt.offer if attempt.handed or not prompt.dropped else None,
            publish=attempt.publish,
            lease_s=attempt.kv_lease_s,
            contract=None if prompt.dropped else attempt.contract,
        ),
        revision=pinned.revision,
        boot=pinned.engine,
        form=prompt.form,
        asked=attempt.transcript.asked,
        cache_salt=cache_salt(pinned.revision, attempt.tenant),
        model=attempt.engine.model,
    )


async def _evidence(http: EngineHttp, attempt: Attempt) -> Evidence | None:
    """Asked again for a moment: the engine writes it beside the answer, and not before it."""
    for _ in range(EVIDENCE_TRIES):
        evidence = await client.evidence(http, attempt.engine, attempt.id, 0)
        if evidence is not None:
            return evidence
        await asyncio.sleep(EVIDENCE_PAUSE_S)
    return None


async def _refusal(http: EngineHttp, attempt: Attempt) -> KvRefused | None:
    """What a broken attempt refused, if its engine can still say so."""
    try:
        evidence = await client.evidence(http, attempt.engine, attempt.id, 0)
    except EverturnError:
        return attempt.prefill_refusal
    if evidence is None:
        return attempt.prefill_refusal
    return refused_by(evidence, attempt.pinned.turn, attempt.pinned.attempt) or attempt.prefill_refusal


def _source(attempt: Attempt, evidence: Evidence) -> KvSource:
    if evidence.loaded is None:
        return KvSource.NONE
    if attempt.handed is not None and attempt.handed.made:
        return KvSource.PREFILLED
    rebuilt = attempt.turn.rebuilt
    if rebuilt is not None and rebuilt.artifact == evidence.loaded.artifact:
        return KvSource.REBUILT
    return KvSource.REUSED


def _reason(attempt: Attempt, prompt: Prompt, evidence: Evidence) -> str:
    if prompt.dropped:
        return f"the oldest {prompt.dropped} items were left out, to fit the model's context"
    if evidence.refusal is not None:
        return f"refused: {evidence.refusal.reason}"
    return attempt.note
