"""docs/plans.md lists every class of input and its plan: for each combination, the first row that fits is what comes of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from service.domain.contract import Contract
from service.domain.events import OnUpgrade
from service.domain.plan import (
    Engine,
    EngineRole,
    EngineState,
    History,
    StoredArtifact,
    TurnPlan,
    WarmUp,
    plan_turn,
)
from tests.domain.test_plan import NEW, OLD, engine, stored

PAGE = Path(__file__).parents[2] / "docs" / "plans.md"
SHORTEST = 64

CLASSES = {
    "last answer": ("none", "target", "another"),
    "on_upgrade": tuple(OnUpgrade),
    "its engines": ("ready", "fail", "none"),
    "target's engines": ("ready", "fail", "none"),
    "template": ("extends", "differs", "rewrites"),
    "KV at hand": ("none", "target's", "contract", "another's"),
    "history": ("long", "short"),
    "warm-up": ("none", "at it", "another"),
    "instructions, tools": ("same", "others"),
}
Input = Mapping[str, str]
INPUTS: list[Input] = [
    dict(zip(CLASSES, values, strict=True))
    for values in product(*CLASSES.values())
    if values[0] != "none" or values[4:6] == ("extends", "none")
]
"""A conversation without an answer has neither KV nor tokens to carry."""

CONTRACT = Contract(
    reader=NEW,
    producer=OLD,
    waived=("engine_version",),
    reason="tested",
    approved_by="ada",
    approved_ms=0,
    ends_ms=1,
)
REVISIONS = {"its": OLD, "target's": NEW, "": None}
OFFERS = {"another's": stored(OLD).artifact, "target's": stored(NEW).artifact, "": None}


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    fits: Mapping[str, frozenset[str]]
    outcome: Mapping[str, str]

    def takes(self, given: Input) -> bool:
        return all(given[column] in values for column, values in self.fits.items())


def rows() -> list[Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert head[: len(CLASSES)] == list(CLASSES)
    found = []
    for number, cells in enumerate(body, 1):
        named = dict(zip(head, cells, strict=True))
        fits = {name: frozenset(named[name].split(", ")) for name in CLASSES if named[name]}
        for name, values in fits.items():
            assert values <= set(CLASSES[name]), (number, name)
        found.append(Row(number, fits, {name: named[name] for name in head[len(CLASSES) :]}))
    return found


ROWS = rows()


def fleet(given: Input) -> list[Engine]:
    """Engines that decode nothing now stand for none."""
    theirs = {"ready": [engine(OLD)], "fail": [engine(OLD)], "none": []}
    ours = {"ready": [engine(NEW)], "fail": [engine(NEW)], "none": [engine(NEW, state=EngineState.GONE)]}
    return [*theirs[given["its engines"]], *ours[given["target's engines"]]]


def planned(given: Input) -> TurnPlan:
    last = {"none": None, "target": NEW, "another": OLD}[given["last answer"]]
    kv: dict[str, list[StoredArtifact]] = {
        "none": [],
        "target's": [stored(NEW)],
        "contract": [stored(OLD)],
        "another's": [stored(OLD)],
    }
    tokens = SHORTEST if given["history"] == "long" else SHORTEST - 1
    warm_ups = {"none": None, "at it": tokens, "another": tokens - 1}
    warmed = warm_ups[given["warm-up"]]
    engines = fleet(given)
    failed = {OLD: given["its engines"] == "fail", NEW: given["target's engines"] == "fail"}
    return plan_turn(
        history=History(
            revision=last,
            tokens=tokens,
            same_text=given["template"] != "differs",
            append_only=given["template"] != "rewrites",
            same_frame=given["instructions, tools"] == "same",
        ),
        target=NEW,
        policy=OnUpgrade(given["on_upgrade"]),
        fleet=engines,
        artifacts=kv[given["KV at hand"]],
        rebuild_min_tokens=SHORTEST,
        contracts=[CONTRACT] if given["KV at hand"] == "contract" else [],
        avoid=[e.boot for e in engines if failed[e.revision]],
        warm_up=None if warmed is None else WarmUp(tokens_total=warmed, tokens_done=0),
    )


def test_every_input_fits_some_row() -> None:
    assert [given for given in INPUTS if not any(row.takes(given) for row in ROWS)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.number} {row.outcome['plan']}")
def test_what_fits_a_row_first_is_planned_as_it_says(row: Row) -> None:
    theirs = [given for given in INPUTS if next(one for one in ROWS if one.takes(given)) is row]
    assert theirs, "no input comes to this row"
    said, reason = row.outcome, re.escape(row.outcome["reason"]).replace("…", ".+")
    for given in theirs:
        plan = planned(given)
        assert plan.kind == said["plan"], given
        assert (plan.engine.revision if plan.engine else None) == REVISIONS[said["runs on"]], given
        assert plan.offer == OFFERS[said["is offered"]], given
        assert re.fullmatch(reason, plan.reason), (given, plan.reason)


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (engine(NEW, state=EngineState.DRAINING), "those there are drain"),
        (engine(NEW, role=EngineRole.PREFILL), "those there are only prefill"),
    ],
)
def test_a_wait_says_what_the_engines_that_are_there_do(there: Engine, why: str) -> None:
    result = plan_turn(
        history=History(revision=None, tokens=0, same_text=True),
        target=NEW,
        policy=OnUpgrade.REPLAY,
        fleet=[there],
        artifacts=[],
        rebuild_min_tokens=SHORTEST,
    )
    assert result.reason == f"no ready engine serves {NEW}: {why}"
