"""Every statement of a turn's life as one version of the code sent it, to be sent again on later schemas: see turn_life.py."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.errors import DeadlockDetected
from psycopg.rows import TupleRow
from psycopg.types.json import Json, Jsonb

from service.api.database import TRIES
from service.store.connection import parse_url, startup_options

OUR_IDS = re.compile(r"\b(conv|resp|msg|rb|kv|once)_[0-9a-f]{32}")
"""Of what is made anew each time; engines, keys and tenants are made once."""

Parameters = Mapping[str, Any] | Sequence[Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    sql: str
    parameters: Parameters
    rows: int | None
    """That it found or changed; None where that depends on what else goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    name: str
    role: str
    once: bool
    """Whether it makes what all others need."""
    statements: tuple[Statement, ...]


def load(path: Path) -> list[Transaction]:
    return [_transaction(json.loads(line)) for line in path.read_text().splitlines()]


def dump(transactions: Sequence[Transaction], path: Path) -> None:
    lines = [
        {
            "name": one.name,
            "role": one.role,
            "once": one.once,
            "statements": [
                {"sql": s.sql, "parameters": _packed(s.parameters), "rows": s.rows} for s in one.statements
            ],
        }
        for one in transactions
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


class Replay:
    """Sends what was recorded, in sessions that last, as a process does that is not stopped while the schema changes."""

    def __init__(self, url: str, transactions: Sequence[Transaction]) -> None:
        self._transactions = transactions
        self._sessions = {role: _connect(url, role) for role in sorted({one.role for one in transactions})}

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def once(self) -> None:
        for transaction in self._transactions:
            if transaction.once:
                self._send(transaction, {})

    def life(self) -> Iterator[str]:
        """All of a turn's transactions, on a conversation of its own: the name of each once it is committed."""
        renamed: dict[str, str] = {}
        for transaction in self._transactions:
            if not transaction.once:
                self._send(transaction, renamed)
                yield transaction.name

    def _send(self, transaction: Transaction, renamed: dict[str, str]) -> None:
        """From its beginning again where it lost a deadlock, as the service does."""
        for _ in range(1, TRIES):
            try:
                self._try(transaction, renamed)
            except DeadlockDetected:
                continue
            return
        self._try(transaction, renamed)

    def _try(self, transaction: Transaction, renamed: dict[str, str]) -> None:
        session = self._sessions[transaction.role]
        with session.transaction():
            for statement in transaction.statements:
                done = _execute(session, statement.sql, renaming(statement.parameters, renamed))
                assert statement.rows in (None, done.rowcount), (
                    f"{transaction.name}: {done.rowcount} rows, not {statement.rows}, of {statement.sql}"
                )


def _execute(
    session: psycopg.Connection[TupleRow], sql: str, parameters: Parameters
) -> psycopg.Cursor[TupleRow]:
    if isinstance(parameters, list) and parameters and isinstance(parameters[0], Mapping | list):
        cursor = session.cursor()
        cursor.executemany(sql, parameters)
        return cursor
    return session.execute(sql, parameters)


def _connect(url: str, role: str) -> psycopg.Connection[TupleRow]:
    """Under the service's own limits."""
    dsn = url.replace("postgresql+psycopg", "postgresql")
    return psycopg.connect(dsn, options=startup_options(parse_url(url), role))


def renaming(value: Any, renamed: dict[str, str]) -> Any:
    """Each id of a turn's life replaced, everywhere by the same new one."""
    if isinstance(value, str):
        return OUR_IDS.sub(lambda found: renamed.setdefault(found[0], f"{found[1]}_{uuid4().hex}"), value)
    if isinstance(value, Jsonb):
        return Jsonb(renaming(value.obj, renamed))
    if isinstance(value, Mapping):
        return {name: renaming(part, renamed) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [renaming(part, renamed) for part in value]
    return value


def _packed(value: Any) -> Any:
    match value:
        case Jsonb() | Json():
            return {"$jsonb": value.obj}
        case psycopg.Binary():
            return _packed(value.obj)
        case bytes():
            return {"$bytes": value.hex()}
        case datetime():
            return {"$datetime": value.isoformat()}
        case Mapping():
            return {name: _packed(part) for name, part in value.items()}
        case list() | tuple():
            return [_packed(part) for part in value]
        case _:
            return value


def _unpacked(value: Any) -> Any:
    match value:
        case {"$jsonb": document}:
            return Jsonb(document)
        case {"$bytes": text}:
            return bytes.fromhex(text)
        case {"$datetime": text}:
            return datetime.fromisoformat(text)
        case dict():
            return {name: _unpacked(part) for name, part in value.items()}
        case list():
            return [_unpacked(part) for part in value]
        case _:
            return value


def _transaction(line: dict[str, Any]) -> Transaction:
    statements = tuple(
        Statement(sql=s["sql"], parameters=_unpacked(s["parameters"]), rows=s["rows"])
        for s in line["statements"]
    )
    return Transaction(name=line["name"], role=line["role"], once=line["once"], statements=statements)
