"""How long a rollout still takes, as far as it has a plan: its pace so far, and the holds that are left."""

from dataclasses import dataclass

from service.domain.rollout import Facts, Rollout
from service.domain.rollout_events import RolloutState


@dataclass(frozen=True, slots=True, kw_only=True)
class Warming:
    left: int
    """Conversations."""
    settled: int
    """Those that were warmed since it began to warm, or was resumed."""


def eta_s(rollout: Rollout, facts: Facts, warming: Warming) -> float | None:
    """Seconds until all conversations have moved; None where that is not known: nothing was warmed yet, or somebody has to act."""
    passed_s = (facts.now - facts.since).total_seconds()
    holds_s = float(sum(share.hold_s for share in rollout.strategy.shift if share.percent > rollout.percent))
    match rollout.state:
        case RolloutState.SHIFTING:
            at = next(share.hold_s for share in rollout.strategy.shift if share.percent == rollout.percent)
            return holds_s + max(0.0, at - passed_s)
        case RolloutState.WARMING if warming.left == 0:
            return holds_s
        case RolloutState.WARMING if warming.settled > 0:
            return holds_s + passed_s / warming.settled * warming.left
        case RolloutState.PLANNED if facts.serving and rollout.strategy.warm == 0:
            return holds_s
        case RolloutState.DRAINING:
            return 0.0
        case _:
            return None
