"""What there is of a turn once it has been answered: asked of the service and of OGX, each by the response's id."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from bench.api_ogx import Ogx
from bench.api_service import TENANT, BenchService
from service.domain.events import ConversationId
from service.store import heads
from service.store.connection import make_engine
from stack.postgres import EmbeddedPostgres

SEEN = 3
"""Number of the last event that a client has who comes back to a stream."""


def kept_by_service(
    service: BenchService, server: EmbeddedPostgres, response: str, identity: Mapping[str, Any]
) -> dict[str, bool]:
    headers = {"authorization": f"Bearer {service.tenant_key}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60, trust_env=False) as http:
        document, stream = _asked(http, response)
    conversation = document["conversation"]["id"]
    record = service.admin.get(f"/admin/audit/conversations/{conversation}").raise_for_status().text
    engine = make_engine(server.url(), application_name="bench", pool_size=1)
    with engine.begin() as conn:
        window = heads.load_transcript(conn, TENANT, ConversationId(conversation)).window
    engine.dispose()
    return _kept(document, stream, [window], record, identity)


def kept_by_ogx(ogx: Ogx, response: str, identity: Mapping[str, Any]) -> dict[str, bool]:
    """Of all the rows that it has, whatever turn they are of."""
    document, stream = _asked(ogx.http, response)
    with sqlite3.connect(ogx.database) as conn:
        tables = [name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = [cell for table in tables for row in conn.execute(f'SELECT * FROM "{table}"') for cell in row]  # noqa: S608
    record = "\n".join(map(str, cells))
    lists = [found for cell in cells for found in _ids(_decoded(cell))]
    return _kept(document, stream, lists, record, identity)


def _kept(
    document: Mapping[str, Any],
    stream: str,
    ids: list[tuple[int, ...]],
    record: str,
    identity: Mapping[str, Any],
) -> dict[str, bool]:
    usage = document["usage"]
    return {
        "answer": bool(document["output"]),
        "stream_from_any_event": f'"sequence_number": {SEEN + 1}' in stream,
        "token_ids": any(len(one) == usage["input_tokens"] + usage["output_tokens"] for one in ids),
        "revision": identity["revision"] in record,
        "engine": identity["boot"] in record,
    }


def _asked(http: httpx.Client, response: str) -> tuple[dict[str, Any], str]:
    """The response as it is retrieved, and its stream after the first events; that it is none is no error."""
    path = f"/v1/responses/{response}"
    document: dict[str, Any] = http.get(path).raise_for_status().json()
    again = http.get(path, params={"stream": "true", "starting_after": SEEN})
    return document, again.text if "event-stream" in again.headers.get("content-type", "") else ""


def _decoded(cell: Any) -> Any:
    """Text that is no JSON holds no list."""
    try:
        return json.loads(cell) if isinstance(cell, str) else None
    except ValueError:
        return None


def _ids(value: Any) -> Iterator[tuple[int, ...]]:
    """Every list of whole numbers in it."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _ids(inner)
    elif isinstance(value, list) and value and all(type(one) is int for one in value):
        yield tuple(value)
    elif isinstance(value, list):
        for inner in value:
            yield from _ids(inner)
