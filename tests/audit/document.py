"""The questions of docs/audit.md with their queries and results; `python -m tests.audit.document` writes the results anew."""

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, text

from service.store.connection import make_engine
from service.store.migrate import upgrade
from stack.postgres import EmbeddedPostgres
from tests.audit.history import tell

DOCUMENT = Path(__file__).parents[2] / "docs/audit.md"
QUESTION = re.compile(
    r"^### (?P<number>\d+)\. (?P<question>.+?)\n+```sql\n(?P<query>.+?)```\n+```text\n(?P<result>.*?)```",
    re.MULTILINE | re.DOTALL,
)
LONGEST_CELL = 44


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    number: int
    question: str
    query: str
    result: str


def questions() -> list[Question]:
    return [
        Question(
            number=int(found["number"]),
            question=found["question"],
            query=found["query"].strip(),
            result=found["result"].strip(),
        )
        for found in QUESTION.finditer(DOCUMENT.read_text())
    ]


def ask(conn: Connection, query: str) -> str:
    """As the auditor."""
    conn.execute(text("SET LOCAL ROLE everturn_auditor"))
    answer = conn.exec_driver_sql(query.rstrip(";"))
    return "\n".join(line.rstrip() for line in table(list(answer.keys()), [list(row) for row in answer]))


def table(names: list[str], rows: list[list[Any]]) -> Iterator[str]:
    lines = [names, *([shown(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True))
    yield "  ".join("-" * width for width in widths)
    for line in lines[1:]:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
    yield f"({len(rows)} row{'' if len(rows) == 1 else 's'})"


def shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case Decimal():
            return str(value.to_integral_value()) if value == value.to_integral_value() else f"{value:.2f}"
        case list():
            line = "{" + ",".join(map(str, value)) + "}"
        case _:
            line = str(value)
    return line if len(line) <= LONGEST_CELL else f"{line[: LONGEST_CELL - 1]}\u2026"


def answered(conn: Connection) -> str:
    """The whole document, its results as they are in the history that `tell` has made."""

    def again(found: re.Match[str]) -> str:
        with conn.begin_nested() as asked:
            result = ask(conn, found["query"].strip())
            asked.rollback()
        head = f"### {found['number']}. {found['question']}"
        return f"{head}\n\n```sql\n{found['query']}```\n\n```text\n{result}\n```"

    return QUESTION.sub(again, DOCUMENT.read_text())


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="everturn-audit-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder) / "postgres", durable=False) as server:
            upgrade(server.url())
            engine = make_engine(server.url(), application_name="document", role=None)
            with engine.begin() as conn:
                tell(conn)
                DOCUMENT.write_text(answered(conn))
            engine.dispose()


if __name__ == "__main__":
    main()
