"""Settings that the pages name are there, and have the defaults that the pages give."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from stack.deployment import KV_BUDGET_GIB

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
"""Without decisions, which tell of their time."""
OF_THE_STACK = {"EVERTURN_MODEL": None, "EVERTURN_KV_BUDGET_GIB": float(KV_BUDGET_GIB)}
"""What `make up` reads beside the service's own."""
DEFAULTS = OF_THE_STACK | {
    f"EVERTURN_{name.upper()}": field.default for name, field in Settings.model_fields.items()
}
GIVEN = re.compile(r"`(EVERTURN_\w+)`(?:, | \()(?:default )?(\d[\d,]*(?:\.\d+)?)")
"""As `EVERTURN_LOCAL_SLACK` (4), or (`EVERTURN_TURN_WAIT_S`, 120 s)."""


def given() -> Iterator[tuple[str, str, float]]:
    for page in PAGES:
        for name, number in GIVEN.findall(page.read_text()):
            yield page.name, name, float(number.rstrip(",").replace(",", ""))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_setting_that_is_named_is_there(page: Path) -> None:
    assert set(re.findall(r"EVERTURN_[A-Z][A-Z0-9_]*", page.read_text())) <= DEFAULTS.keys()


def test_a_default_that_is_given_is_the_one_that_it_has() -> None:
    told = list(given())
    assert {name for _, name, _ in told} >= {"EVERTURN_REBUILD_MIN_TOKENS", "EVERTURN_TURN_WAIT_S"}
    assert [(page, name, number) for page, name, number in told if DEFAULTS[name] != number] == []
