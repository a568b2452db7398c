"""docs/identity-and-guard.md names what there is: every counter, every check, toggles that count, and a config that passes its own check."""

import json
import re
from pathlib import Path

from service.domain.artifact import RefusalReason
from workers.guard_check import _connector, _others
from workers.kv_connector.counters import Count
from workers.kv_connector.toggles import WHERE_SET

PAGE = (Path(__file__).parents[2] / "docs/identity-and-guard.md").read_text()


def test_every_counter_is_named_and_no_other() -> None:
    told = PAGE[PAGE.index("`GET /everturn/metrics`") : PAGE.index("For each attempt")]
    named = re.findall(r"`(?:everturn_kv|…)_(\w+?)_total(?:\{reason\})?`", told)
    assert sorted(named) == sorted(Count)


def test_reasons_to_alert_on_are_reasons() -> None:
    told = PAGE[PAGE.index("Alert on") : PAGE.index("For each attempt")]
    named = re.findall(r"`(\w+)`", told)
    assert len(named) >= 4
    assert set(named) <= set(RefusalReason)


def test_the_connectors_that_it_shows_are_in_an_order_that_protects_them() -> None:
    [block] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    shown = json.loads(block)["kv_connector_extra_config"]["connectors"]
    names = {"connectors": [one["kv_connector"] for one in shown]}
    assert _connector(names)[0]
    assert _others(names)[0]
    assert shown[0]["kv_connector_module_path"] == "workers.kv_connector.connector"


def test_toggles_of_libraries_that_it_names_are_part_of_the_identity() -> None:
    told = PAGE[PAGE.index("Toggles are vLLM's own") : PAGE.index("*Text identity*")]
    named = re.findall(r"`([A-Z_0-9]+)`", told)
    assert len(named) == 4
    assert all(name.startswith(WHERE_SET) for name in named)
