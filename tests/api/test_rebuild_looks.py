"""Turns that wait for rebuilds share their looks at the rows."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any, cast

import pytest

from service.api.database import ALL_TENANTS, Database, Reach
from service.api.rebuild_looks import GATHER_S, RebuildLooks
from service.store import rebuild_progress


class Rows:
    """In the place of a database: what each look asked for, and rows that are their ids."""

    def __init__(self) -> None:
        self.looks: list[set[str]] = []
        self.error: Exception | None = None

    async def run(self, transaction: Callable[[Any], Any], *, reach: Reach) -> Any:
        assert reach is ALL_TENANTS
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return transaction(self)

    def look(self, _conn: object, wanted: set[str]) -> dict[str, str]:
        self.looks.append(wanted)
        return {name: f"row of {name}" for name in wanted if name != "rb_none"}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Rows:
    rows = Rows()
    monkeypatch.setattr(rebuild_progress, "look", rows.look)
    return rows


def looks(rows: Rows) -> Any:
    return RebuildLooks(cast("Database", rows))


async def test_who_asks_at_the_same_time_shares_one_look(rows: Rows) -> None:
    shared = looks(rows)
    found = await asyncio.gather(*(shared.find(name) for name in ("rb_1", "rb_2", "rb_none")))
    assert found == ["row of rb_1", "row of rb_2", None]
    assert rows.looks == [{"rb_1", "rb_2", "rb_none"}]


async def test_who_asks_later_gets_a_later_look_of_what_is_wanted_then(rows: Rows) -> None:
    shared = looks(rows)
    await shared.find("rb_1")
    await shared.find("rb_2")
    assert rows.looks == [{"rb_1"}, {"rb_2"}]


async def test_who_is_cancelled_takes_no_look_away_from_the_others(rows: Rows) -> None:
    shared = looks(rows)
    first = asyncio.create_task(shared.find("rb_1"))
    second = asyncio.create_task(shared.find("rb_2"))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "row of rb_2"
    assert len(rows.looks) == 1


async def test_a_look_that_fails_fails_for_all_who_share_it_and_the_next_is_a_new_one(rows: Rows) -> None:
    shared, rows.error = looks(rows), ConnectionError("gone")
    found = await asyncio.gather(shared.find("rb_1"), shared.find("rb_2"), return_exceptions=True)
    assert [str(error) for error in found] == ["gone", "gone"]
    rows.error = None
    assert await shared.find("rb_1") == "row of rb_1"


async def test_a_look_that_fails_when_nobody_waits_for_it_any_more_is_no_error_of_anybody(rows: Rows) -> None:
    """Found by the simulation: of a turn that was ended elsewhere meanwhile, asyncio complained of an error nobody had seen."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    shared, rows.error = looks(rows), ConnectionError("gone")
    asked = asyncio.create_task(shared.find("rb_1"))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.wait([asked])
    await asyncio.sleep(GATHER_S * 5)
    gc.collect()
    assert complaints == []
