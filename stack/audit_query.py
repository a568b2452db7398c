"""A question of one's own to the record, asked as an auditor may ask it: the views of schema `audit`, and read only."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from service.store.audit import for_json
from stack.database import one_line
from stack.errors import StackError


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    names: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def as_table(self) -> Iterator[str]:
        """Lines, with columns as wide as their widest value."""
        cells = [[_shown(value) for value in row] for row in self.rows]
        widths = [
            max(len(line[column]) for line in [self.names, *cells]) for column in range(len(self.names))
        ]
        for line in [self.names, ["-" * width for width in widths], *cells]:
            yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        yield f"({len(cells)} row{'' if len(cells) == 1 else 's'})"

    def as_json_lines(self) -> Iterator[str]:
        for row in self.rows:
            yield json.dumps(dict(zip(self.names, row, strict=True)), default=_plain, ensure_ascii=False)


def ask(conn: Connection, query: str) -> Answer:
    """Raises: StackError: PostgreSQL would not answer it, with its own words."""
    try:
        # Without parameters a per cent sign is only that.
        found = conn.execution_options(no_parameters=True).exec_driver_sql(query)
        if not found.returns_rows:
            raise StackError("that gives no rows: ask with a SELECT")
        if found.cursor.nextset():
            raise StackError("that is more than one statement: ask one at a time")
        answer = Answer(names=list(found.keys()), rows=[list(row) for row in found.all()])
    except DBAPIError as error:
        raise StackError(
            f"PostgreSQL does not answer that: {one_line(error.orig)}; an auditor reads the views of schema audit (docs/audit.md)"
        ) from error
    return answer


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case list():
            return "{" + ",".join(map(_shown, value)) + "}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case bytes():
            return value.hex()
        case _:
            return str(value).replace("\n", " ")


def _plain(value: object) -> object:
    known = for_json(value)
    return _shown(value) if known is value else known
