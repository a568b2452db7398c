"""The API with the planner's comparison of revisions taken out: it believes that all stored KV fits the target."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from service import turn_planning
from service.__main__ import main
from service.domain.plan import History, StoredArtifact, TurnPlan, plan_turn
from service.domain.revision import RevisionDigest


def naive_plan(
    *, history: History, target: RevisionDigest, artifacts: Sequence[StoredArtifact], **others: Any
) -> TurnPlan:
    return plan_turn(
        history=replace(history, revision=target),
        target=target,
        artifacts=[replace(artifact, revision=target) for artifact in artifacts],
        **others,
    )


if __name__ == "__main__":
    vars(turn_planning)["plan_turn"] = naive_plan
    sys.exit(main())
