"""The API with the planner's comparison of revisions taken out: it believes that all stored KV fits the target."""

import sys
from collections.abc import Sequence
from dataclasses import replace

from service import turn_flow
from service.__main__ import main
from service.domain.events import OnUpgrade
from service.domain.plan import Engine, History, StoredArtifact, TurnPlan, plan_turn
from service.domain.revision import RevisionDigest


def naive_plan(
    *,
    history: History,
    target: RevisionDigest,
    policy: OnUpgrade,
    fleet: Sequence[Engine],
    artifacts: Sequence[StoredArtifact],
    rebuild_min_tokens: int,
) -> TurnPlan:
    return plan_turn(
        history=replace(history, revision=target),
        target=target,
        policy=policy,
        fleet=fleet,
        artifacts=[replace(artifact, revision=target) for artifact in artifacts],
        rebuild_min_tokens=rebuild_min_tokens,
    )


if __name__ == "__main__":
    vars(turn_flow)["plan_turn"] = naive_plan
    sys.exit(main())
