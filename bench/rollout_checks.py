"""After a load: what was failed, wrong or doubled of it, and how wrong it would have been on handles reused by name."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.rollout_fleet import BenchFleet
from bench.rollout_load import MAX_TOKENS, Said
from demo.reference import Reference
from service.domain.evidence import KvRequest

COMPLETIONS = """
SELECT stream, payload ->> 'turn', count(*) FROM events
WHERE type = 'turn.completed' AND stream = ANY(%s) GROUP BY 1, 2
"""
SPOKEN = """
SELECT count(*) FROM events WHERE type = 'message.accepted' AND payload ->> 'role' = 'user' AND stream = ANY(%s)
"""
OLD_KV = """
SELECT artifact_id FROM artifacts WHERE conversation_id = %s AND revision = %s ORDER BY tokens DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    failed: int
    wrong: int
    doubled: int
    cold: dict[str, tuple[int, ...]]
    """By turn: what its prompt comes to on its own revision, prefilled from nothing."""


def check(fleet: BenchFleet, said: Sequence[Said]) -> Checked:
    answered = [one for one in said if one.ok]
    for one in said:
        if not one.ok:
            print(f"FAILED {one.turn or 'before it had an id'}: {one.words}", flush=True)
    # One at a time at each engine.
    by_engine: dict[str, dict[str, list[Said]]] = {}
    for one in answered:
        by_engine.setdefault(one.revision, {}).setdefault(one.conversation, []).append(one)
    with ThreadPoolExecutor(max(1, len(by_engine))) as pool:
        jobs = [pool.submit(_cold, fleet, [*of.values()]) for of in by_engine.values()]
        found = {turn: tokens for job in jobs for turn, tokens in job.result().items()}
    wrong = [one.turn for one in answered if fleet.auditor.output(one.turn) != found[one.turn]]
    for turn in wrong:
        print(f"WRONG {turn}: {fleet.auditor.output(turn)}, and from nothing {found[turn]}", flush=True)
    return Checked(
        failed=len(said) - len(answered),
        wrong=len(wrong),
        doubled=_doubled(fleet, answered, said),
        cold=found,
    )


def _cold(fleet: BenchFleet, conversations: Sequence[Sequence[Said]]) -> dict[str, tuple[int, ...]]:
    return {turn: tokens for turns in conversations for turn, tokens in _of_one(fleet, turns).items()}


def _of_one(fleet: BenchFleet, turns: Sequence[Said]) -> dict[str, tuple[int, ...]]:
    """All that one revision answered of a conversation, by one cold prefill of what stands there in the end.

    Its answers are what the model would have said if each of their tokens is the likeliest one after all before it. Where one is not, or an
    answer is shorter than was allowed, the turn's own prompt is prefilled and decoded: only that tells a near tie from a wrong answer.
    """
    auditor, engine = fleet.auditor, fleet.engine_of(turns[0].revision)
    prompts = {one.turn: auditor.prompt(one.turn) for one in turns}
    outputs = {one.turn: auditor.output(one.turn) for one in turns}
    last = turns[-1].turn
    whole = (*prompts[last], *outputs[last])
    likeliest = engine.most_likely(whole)
    found = {}
    for turn, output in outputs.items():
        begin, end = len(prompts[turn]), len(prompts[turn]) + len(output)
        stands_there = (*prompts[turn], *output) == whole[:end]
        right = stands_there and likeliest[begin:end] == output and len(output) == MAX_TOKENS
        found[turn] = output if right else engine.cold(prompts[turn], MAX_TOKENS)
    return found


def _doubled(fleet: BenchFleet, answered: Sequence[Said], said: Sequence[Said]) -> int:
    """Turns that were completed more than once, or that nobody asked for."""
    conversations = sorted({one.conversation for one in answered})
    completed = fleet.rows(COMPLETIONS, conversations)
    twice = sum(count - 1 for _, _, count in completed)
    [[spoken]] = fleet.rows(SPOKEN, conversations)
    asked = Counter(one.conversation for one in said if one.conversation)
    return int(twice + max(0, spoken - asked.total()))


def naive_wrong(
    fleet: BenchFleet, reader: Reference, said: Sequence[Said], cold: dict[str, tuple[int, ...]]
) -> tuple[int, int]:
    """The first turn of each conversation after the upgrade, on the KV that its v12 engine had stored: how many are wrong, of how many.

    `reader` is an engine on v13's weights that reads whatever handle its tokens match.
    """
    wrong = tried = 0
    first: dict[str, Said] = {}
    for one in said:
        if one.ok and one.revision == fleet.v13.revision:
            first.setdefault(one.conversation, one)
    for conversation, one in first.items():
        rows = fleet.rows(OLD_KV, conversation, fleet.v12.revision)
        if not rows:
            continue
        [[handle]] = rows
        request = KvRequest(attempt=f"naive.{one.turn}", tenant="default", offer=handle)
        answer = reader.generate(fleet.auditor.prompt(one.turn), max_tokens=MAX_TOKENS, kv=request)
        tried += 1
        wrong += answer.tokens != cold[one.turn]
    return wrong, tried
