"""What every turn asks the database: compiled once, and run by the driver's own cursor, since SQLAlchemy's way to a row takes longer than the row."""

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import psycopg
from sqlalchemy import ClauseElement, Connection, Dialect
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.exc import DBAPIError, NoResultFound

if TYPE_CHECKING:
    from sqlalchemy.sql.compiler import SQLCompiler

DIALECT = cast("Dialect", PGDialect_psycopg())  # type: ignore[no-untyped-call]

Given = Mapping[str, Any]


class HotStatement:
    """Runs in the transaction that its connection is in, and fails as SQLAlchemy's statements do. Rows are what the driver makes of
    them: for types that SQLAlchemy would convert it is no place.
    """

    def __init__(self, statement: str | ClauseElement, *, columns: Sequence[str] = ()) -> None:
        """Args:
        statement: in the driver's own form, or SQLAlchemy's.
        columns: of an INSERT, those whose values are given with each run.
        """
        self._fixed: Given = {}
        if isinstance(statement, str):
            self.text = statement
        else:
            compiled = cast("SQLCompiler", statement.compile(dialect=DIALECT, column_keys=[*columns] or None))
            self.text = compiled.string
            self._fixed = {name: bind.value for name, bind in compiled.binds.items() if not bind.required}
        self._row: Callable[[Iterable[Any]], Any] | None = None

    def all(self, conn: Connection, given: Given) -> list[Any]:
        """Rows with their columns as attributes."""
        return self._run(conn, given, self._rows)

    def one(self, conn: Connection, given: Given) -> Any:
        """Raises: NoResultFound."""
        row = self.one_or_none(conn, given)
        if row is None:
            raise NoResultFound("No row was found when one was required")
        return row

    def one_or_none(self, conn: Connection, given: Given) -> Any:
        """Of a statement that has one row at most."""
        rows = self._run(conn, given, self._rows)
        return rows[0] if rows else None

    def run(self, conn: Connection, given: Given) -> None:
        """Rows that it may have are dropped."""
        self._run(conn, given, _nothing)

    def begin(self, conn: Connection) -> None:
        """Of what begins a transaction, and has no parameters."""
        self._sent(conn, {}, _nothing)

    def _run(self, conn: Connection, given: Given, take: "Take") -> list[Any]:
        if not conn.in_transaction():
            conn.begin()
        return self._sent(conn, {**self._fixed, **given} if self._fixed else given, take)

    def _sent(self, conn: Connection, parameters: Given, take: "Take") -> list[Any]:
        cursor: Any = conn.connection.cursor()
        try:
            for told in conn.dispatch.before_cursor_execute:
                told(conn, cursor, self.text, parameters, None, False)
            cursor.execute(self.text, parameters)
            rows = take(cursor)
            for told in conn.dispatch.after_cursor_execute:
                told(conn, cursor, self.text, parameters, None, False)
        except psycopg.Error as error:
            raise _as_sqlalchemys(conn, self.text, error, cursor) from error
        except BaseException as error:
            if not isinstance(error, Exception):
                # Cancelled: nobody knows what the server will still say on this connection.
                conn.invalidate(error)
            raise
        finally:
            cursor.close()
        return rows

    def _rows(self, cursor: Any) -> list[Any]:
        if self._row is None:
            row: Any = namedtuple("Row", [column[0] for column in cursor.description])  # type: ignore[misc]  # noqa: PYI024 the statement names them
            self._row = row._make
        return [*map(self._row, cursor.fetchall())]


Take = Callable[[Any], list[Any]]
"""What is made of a cursor that has run."""


def _nothing(_: Any) -> list[Any]:
    return []


def _as_sqlalchemys(conn: Connection, text: str, error: psycopg.Error, cursor: Any) -> Exception:
    driver = conn.connection.dbapi_connection
    gone = conn.dialect.is_disconnect(cast("Any", error), driver, cursor)
    if gone:
        conn.invalidate(error)
    return DBAPIError.instance(
        text,
        None,
        error,
        psycopg.Error,
        connection_invalidated=gone,
        dialect=conn.dialect,
    )
