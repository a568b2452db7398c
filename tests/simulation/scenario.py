"""What a seed stands for: who talks how often, what the operator does, how much goes wrong."""

from dataclasses import dataclass, replace
from random import Random

from service.domain.events import OnUpgrade
from service.domain.rollout_events import Drain, Limits, Share, Strategy
from tests.simulation.faults import Rates

SHIFTS = ((100,), (50, 100), (20, 60, 100))
PATIENT = Limits(refusals=1000, failed_attempts=1000, failed_rebuilds=1000)
STRICT = Limits(refusals=2, failed_attempts=2, failed_rebuilds=1)
DEEDS = ("nothing", "nothing", "back", "back", "pause", "abort", "move", "drain", "retire", "restart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    conversations: int
    turns: int
    think_s: float
    streamed: float
    """Share of turns."""
    scored: float
    long: float
    """Share of turns whose prompt is worth a prefill engine's time."""
    terms: float
    """That run in the background, or have a deadline, or end with who listens."""
    tools: float
    truncated: float
    """That leave their oldest items out where the model takes no more."""
    cancelled: float
    repeated: float
    policies: tuple[OnUpgrade | None, ...]
    named: float
    """Share of turns that name the new revision, from when its rollout begins: they do not wait for a warm-up to be over."""
    engines: int
    """Of each revision."""
    prefill: int
    """Of each revision, beside those, that only prefill; with some, the others only decode."""
    apis: int
    pool: int
    rollout_at_s: float
    strategy: Strategy
    deed: str
    """Of the operator, once the rollout is under way."""
    deed_after_s: float
    tokenizer: str
    """Of the new revision."""
    max_model_len: int
    token_s: float
    """Of a prefill: where it is long, leases have to be renewed meanwhile."""
    kv_kept: int
    rates: Rates
    storms: float
    """A second: the chance of something that befalls all at once."""
    faults_until_s: float


def of_seed(seed: int) -> Scenario:
    random = Random(seed)  # noqa: S311 the same each time
    harm = random.choice((0.0, 0.3, 1.0, 1.0, 2.0))
    turns, think_s = random.randint(2, 5), random.choice((0.5, 2.0, 6.0))
    chosen = Scenario(
        conversations=random.randint(1, 4),
        turns=turns,
        think_s=think_s,
        streamed=0.5,
        scored=0.1,
        terms=random.choice((0.0, 0.3)),
        tools=random.choice((0.0, 0.2)),
        cancelled=random.choice((0.0, 0.0, 0.1)),
        repeated=0.2,
        policies=random.choice(
            (
                (None,),
                (None, OnUpgrade.STAY),
                (None, OnUpgrade.REPLAY, OnUpgrade.STAY, OnUpgrade.STAY_STRICT),
            )
        ),
        named=0.0,
        engines=random.randint(1, 2),
        apis=random.randint(1, 2),
        pool=random.randint(1, 3),
        rollout_at_s=random.uniform(0.2, 0.7) * turns * think_s,
        strategy=_strategy(random),
        deed=random.choice(DEEDS),
        deed_after_s=random.uniform(0.1, 12.0),
        tokenizer=random.choice(("letters", "letters", "letters", "other")),
        max_model_len=random.choice((80, 100_000, 100_000, 100_000)),
        token_s=random.choice((0.0005, 0.0005, 0.05)),
        kv_kept=random.choice((20, 1000, 1000, 1000)),
        rates=_rates(random, harm),
        storms=0.03 * harm,
        faults_until_s=random.uniform(8.0, 25.0),
        prefill=random.choice((0, 0, 1, 2)),
        long=random.choice((0.0, 0.5)),
        truncated=random.choice((0.0, 0.5)),
    )
    return replace(chosen, max_model_len=200) if chosen.long and chosen.max_model_len == 80 else chosen


def stormy(seed: int) -> Scenario:
    return replace(of_seed(seed), storms=0.5, kv_kept=1000, faults_until_s=25.0)


def hasty(seed: int) -> Scenario:
    """Many turns come while their conversation is warmed, which takes long."""
    return replace(
        of_seed(seed),
        conversations=4,
        turns=4,
        think_s=1.0,
        policies=(None,),
        named=0.5,
        rollout_at_s=1.5,
        strategy=Strategy(
            warm=10,
            warm_tokens_per_s=None,
            shift=(Share(percent=100, hold_s=1),),
            drain=Drain.UNPINNED,
            limits=PATIENT,
        ),
        tokenizer="letters",
        max_model_len=100_000,
        token_s=0.1,
        kv_kept=1000,
    )


def eventful(seed: int) -> Scenario:
    """With everything that there are steps of; in most of these nothing is killed but by a plan."""
    strategy = Strategy(
        warm=2,
        warm_tokens_per_s=(None, 40)[seed // 2 % 2],
        shift=(Share(percent=50, hold_s=2), Share(percent=100, hold_s=1)),
        drain=Drain.UNPINNED,
        limits=PATIENT,
    )
    deeds = sorted(set(DEEDS))
    return replace(
        of_seed(seed),
        conversations=3,
        turns=4,
        think_s=2.0,
        scored=0.3,
        terms=0.3,
        tools=0.3,
        truncated=seed % 4 // 2 * 0.5,
        cancelled=0.1,
        policies=(None,),
        engines=1,
        prefill=seed // 2 % 2,
        long=seed // 2 % 2 * 0.3,
        apis=1,
        pool=1,
        rollout_at_s=3.0,
        strategy=strategy,
        deed=deeds[seed % len(deeds)],
        deed_after_s=4.0 + seed // 8 % 6,
        tokenizer="letters",
        max_model_len=(40, 100_000, 100_000)[seed % 3],
        token_s=(0.0005, 0.1)[seed % 2],
        kv_kept=1000,
        rates=Rates(
            engine=(seed % 3) * 0.05,
            message=(seed % 2) * 0.2,
            crash=0.01 if seed % 5 == 4 else 0.0,
            lose=0.03 if seed % 4 == 3 else 0.0,
        ),
        storms=0.0,
        faults_until_s=20.0,
    )


def parted(seed: int) -> Scenario:
    """Of each revision an engine that prefills what is long, and all of it is, beside all else that goes wrong."""
    return replace(of_seed(seed), prefill=1, long=1.0, policies=(None,), tokenizer="letters", kv_kept=1000)


def divided(seed: int) -> Scenario:
    """Two revisions with an engine that prefills and one that decodes, and nothing goes wrong but by a plan."""
    return replace(
        eventful(seed),
        prefill=1,
        long=1.0,
        terms=0.0,
        cancelled=0.0,
        deed="nothing",
        max_model_len=100_000,
        token_s=0.0005,
        rates=Rates(),
    )


def _rates(random: Random, harm: float) -> Rates:
    """Some kinds of faults are left out of some runs, so that others get further."""

    def rate(usual: float) -> float:
        return random.choice((0.0, usual, usual * 3)) * harm

    return Rates(crash=rate(0.002), stop=rate(0.002), lose=rate(0.005), engine=rate(0.02), message=rate(0.15))


def _strategy(random: Random) -> Strategy:
    percents = random.choice(SHIFTS)
    return Strategy(
        warm=random.choice((0, 2, 10)),
        warm_tokens_per_s=random.choice((None, None, 100)),
        shift=tuple(Share(percent=percent, hold_s=random.choice((0, 1, 4))) for percent in percents),
        drain=random.choice(list(Drain)),
        limits=random.choice((PATIENT, PATIENT, STRICT)),
    )
