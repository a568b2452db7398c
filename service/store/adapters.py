"""The adapters that engines serve now, as their launchers tell; an engine's row says whether it lives and drains."""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select

from service.domain.adapter import Adapter, ServedAdapter
from service.domain.artifact import BootId
from service.domain.revision import RevisionDigest
from service.store.tables import engine_adapters

Held = dict[str, RevisionDigest | None]
"""Revisions by name; None for an adapter without identity."""


def replace_adapters(conn: Connection, boot: BootId, adapters: Sequence[Adapter]) -> None:
    """What the engine serves from here on, in the place of what it served before. Their revisions must be registered."""
    conn.execute(delete(engine_adapters).where(engine_adapters.c.boot == boot))
    if adapters:
        conn.execute(insert(engine_adapters), [_row(boot, adapter) for adapter in adapters])


def held_adapters(conn: Connection, boot: BootId) -> Held:
    query = select(engine_adapters.c.model, engine_adapters.c.revision)
    return {row.model: row.revision for row in conn.execute(query.where(engine_adapters.c.boot == boot))}


def list_adapters(conn: Connection) -> dict[BootId, list[dict[str, str | None]]]:
    """Of every boot that ever told of any, by name: `model`, `revision` and `reason`, why it has none."""
    columns = engine_adapters.c
    query = select(columns.boot, columns.model, columns.revision, columns.reason)
    listed: dict[BootId, list[dict[str, str | None]]] = {}
    for row in conn.execute(query.order_by(columns.boot, columns.model)):
        named = {"model": row.model, "revision": row.revision, "reason": row.reason}
        listed.setdefault(BootId(row.boot), []).append(named)
    return listed


def _row(boot: BootId, adapter: Adapter) -> dict[str, str | None]:
    revision, reason = (
        (adapter.revision, None) if isinstance(adapter, ServedAdapter) else (None, adapter.reason)
    )
    return {"boot": boot, "model": adapter.model, "revision": revision, "reason": reason}
