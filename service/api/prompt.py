"""The token ids that an attempt is asked with: rendered by its engine, after the stored window where there is one."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from service.domain.conversation import Item
from service.domain.errors import InvalidInput
from service.domain.events import ItemId, Role, TurnId, TurnStarted
from service.domain.items import ItemKind
from service.domain.plan import Engine
from service.domain.transcript import Transcript, frame_of
from service.domain.unanswered import unanswered, wants_answer
from service.engine import client
from service.engine.engine_http import EngineHttp
from service.engine.protocol import PLAIN, Carried, Form, Rendered, RenderMode
from service.turn_flow import Pinned

KEPT_SHARE = 0.75
"""Of the context, at most, that a window holds after its oldest items were left out: so that the next turns extend it."""
ANSWER_SHARE = 0.5
"""Of the context, at most, that is kept free for an answer however long it may be."""
UNLIMITED_SHARE = 0.125
"""Of the context that is kept free for an answer without a limit: less than what cutting frees, so that the next turns are not cut too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    token_ids: tuple[int, ...]
    extends: TurnId | None
    delta: tuple[int, ...]
    dropped: int = 0
    """Of the conversation's oldest items, left out."""
    form: Form = PLAIN
    context: int | None = None
    """Of the model, in tokens; None where its engine did not say."""


NOTHING = Prompt(token_ids=(), extends=None, delta=())


def carried_window(transcript: Transcript) -> Carried | None:
    """None where there is no window to extend, or not under the tools and instructions that this turn has."""
    window = transcript.window
    if not window or transcript.frame != frame_of(transcript.asked):
        return None
    last = transcript.items[transcript.covered - 1]
    whole = last.kind is ItemKind.MESSAGE and last.text == transcript.answer
    return Carried(
        items=transcript.covered,
        last_token=window[-1],
        answer=None if whole else transcript.answer,
    )


async def render_prompt(
    http: EngineHttp,
    engine: Engine,
    transcript: Transcript,
    carried: Carried | None,
    started: TurnStarted,
) -> Prompt:
    """Raises:
    EngineFailed, RevisionMismatch: of the engine.
    InvalidInput: this turn's own items are too long for the model's context by themselves.
    """
    rendered: Rendered = await client.render(http, engine, transcript.items, carried, transcript.asked)
    prompt = _whole(rendered)
    if carried is not None and rendered.mode is RenderMode.DELTA:
        ids = (*transcript.window, *rendered.token_ids)
        prompt = replace(prompt, token_ids=ids, extends=transcript.last)
    if not started.truncate:
        return prompt
    context = await client.max_model_len(http, engine)
    if context is None or len(prompt.token_ids) <= _room(context, started):
        return prompt
    return await _fitting(http, engine, transcript, started, context)


async def render_to_answer(
    http: EngineHttp,
    engine: Engine,
    transcript: Transcript,
    carried: Carried | None,
    started: TurnStarted,
) -> Prompt:
    """Raises: as `render_prompt`, and InvalidInput: it leaves no room for an answer, as its engine would say no sooner than in its stream."""
    prompt = await render_prompt(http, engine, transcript, carried, started)
    if prompt.context is not None and len(prompt.token_ids) >= prompt.context:
        raise _too_long(len(prompt.token_ids), prompt.context)
    return prompt


def begin_prompt(http: EngineHttp, plan: Pinned) -> "asyncio.Task[Prompt] | None":
    """Of an attempt whose turn is still being committed: an engine that renders changes nothing, and a prompt is dropped with its turn.

    None where the history has to be rebuilt first. Raises, for who waits for it, as `render_to_answer`.
    """
    transcript = plan.transcript
    if transcript is None:
        return None
    carried = carried_window(transcript) if plan.pinned.carry_tokens else None
    started = plan.head.turns[plan.pinned.turn].started
    begun = asyncio.create_task(render_to_answer(http, plan.engine, transcript, carried, started))
    begun.add_done_callback(_looked_at)
    return begun


def _looked_at(begun: "asyncio.Task[Prompt]") -> None:
    """Nobody may wait for it any more, and asyncio would complain of an error that nobody saw."""
    if not begun.cancelled():
        begun.exception()


def _whole(rendered: Rendered) -> Prompt:
    ids = rendered.token_ids
    return Prompt(token_ids=ids, extends=None, delta=ids, form=rendered.form, context=rendered.max_model_len)


def _room(context: int, started: TurnStarted) -> int:
    most = started.sampling.max_output_tokens
    if most is None:
        return context - int(context * UNLIMITED_SHARE)
    return context - min(most, int(context * ANSWER_SHARE))


async def _fitting(
    http: EngineHttp, engine: Engine, transcript: Transcript, started: TurnStarted, context: int
) -> Prompt:
    """Rendered whole, without as many of the oldest items as it takes; what a conversation opens with as its system stays."""
    room = min(_room(context, started), int(context * KEPT_SHARE))
    items, asked = transcript.items, transcript.asked

    async def without(dropped: int) -> Prompt:
        kept = (*opening, *rest[dropped:])
        return replace(_whole(await client.render(http, engine, kept, None, asked)), dropped=dropped)

    opening = tuple(takewhile(lambda item: item.role is Role.SYSTEM, items))
    rest = items[len(opening) :]
    cuts = _cuts(rest, _own(items, started))
    shortest = await without(cuts[-1])
    if len(shortest.token_ids) > _room(context, started):
        raise InvalidInput(
            f"This turn's input is {len(shortest.token_ids)} tokens long without anything before it; of the model's "
            f"{context}, {_room(context, started)} are left beside its answer; 'max_output_tokens' sets how long that may be.",
            "input",
            "context_length_exceeded",
        )
    low, high, best = 0, len(cuts) - 1, shortest
    while low < high:
        middle = (low + high) // 2
        tried = await without(cuts[middle])
        if len(tried.token_ids) <= room:
            high, best = middle, tried
        else:
            low = middle + 1
    return best


def _own(items: Sequence[Item], started: TurnStarted) -> frozenset[ItemId]:
    """What the turn is to answer: what it brought, or else what waited for it."""
    brought = [item for item in items if item.id in started.items]
    return frozenset(item.id for item in (brought if any(map(wants_answer, brought)) else unanswered(items)))


def _cuts(rest: Sequence[Item], own: frozenset[ItemId]) -> list[int]:
    """How many of the oldest may go: up to a user's word, so that no answer and no call stands without what it answers."""
    last = next((place for place, item in enumerate(rest) if item.id in own), max(0, len(rest) - 1))
    # Of a turn that brings what functions gave back, the calls stay, and so does what they were made for.
    while last > 0 and rest[last].role is not Role.USER and any(item.call for item in rest[last:]):
        last -= 1
    return [place for place in range(1, last) if rest[place].role is Role.USER] + [last]


async def not_taken(http: EngineHttp, engine: Engine, tokens: int, error: InvalidInput) -> InvalidInput:
    most = await client.max_model_len(http, engine)
    return error if most is None or tokens < most else _too_long(tokens, most)


def _too_long(tokens: int, most: int) -> InvalidInput:
    return InvalidInput(
        f"The conversation with this input is {tokens} tokens long; the model takes fewer than {most}.",
        "input",
        "context_length_exceeded",
    )
