"""Whoever reads a view page by page gets each row once, also where ids are equal and while the record grows."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, text

from service.store.audit import VIEWS, read_view

# What must never be, so that the views of it have rows: a turn id that two tenants have, KV of another revision, broken chains.
# And what may be: a rebuild that two turns share.
MORE = text("""
    INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment, chain)
    SELECT tenant, 'conv_strange', version, kind, 1, timestamptz '2026-03-10', jsonb_build_object(
        'turn', 'resp_same', 'attempt', 1, 'rebuild', 'rb_same', 'artifact', 'kv_same', 'producer', 'boot_a1', 'tokens', 8,
        'revision', 'rev_12', 'requested_revision', 'rev_13', 'engine', 'boot_b1', 'engine_revision', 'rev_13',
        'kv_source', 'reused', 'kv_reason', '-', 'prompt_tokens', 8, 'local_tokens', 0, 'output', 0, 'loaded', jsonb_build_object(
            'artifact', 'kv_same', 'revision', 'rev_12', 'producer', 'boot_a1', 'tokens', 8, 'contract', 'ctr_1'
        )
    ), decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), 'hex')
    FROM unnest(ARRAY['acme', 'globex', 'initech']) AS tenant
    CROSS JOIN (VALUES (1, 'kv.rebuilt'), (2, 'turn.completed')) AS told (version, kind)
""")


@pytest.fixture
def strange(history: Connection) -> Iterator[Connection]:
    history.execute(MORE)
    yield history
    history.rollback()


def read(
    conn: Connection, name: str, *, after: str | None = None, limit: int = 10_000
) -> list[dict[str, Any]]:
    return read_view(conn, name, filters={}, after=after, limit=limit)


def key(name: str, row: dict[str, Any]) -> str:
    return str(row[VIEWS[name].order])


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_pages_hold_each_row_once_in_one_order(strange: Connection, name: str, size: int) -> None:
    whole, paged = read(strange, name), list[dict[str, Any]]()
    assert whole, "nothing is shown by a view without rows"
    while page := read(strange, name, after=key(name, paged[-1]) if paged else None, limit=size):
        assert len(page) == size or len(paged) + len(page) == len(whole)
        paged += page
    assert paged == whole


@pytest.mark.parametrize("name", [name for name, view in VIEWS.items() if view.order == "position"])
def test_what_is_added_while_pages_are_read_comes_after_them(history: Connection, name: str) -> None:
    before = read(history, name)
    first = before[: len(before) // 2]
    history.execute(MORE)
    rest = read(history, name, after=key(name, first[-1]) if first else None)
    whole = read(history, name)
    history.rollback()
    assert [key(name, row) for row in [*first, *rest]] == [key(name, row) for row in whole]
