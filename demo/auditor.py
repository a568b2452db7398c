"""Reads the audit views as the `auditor` role, which can read these and nothing else."""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row

PROVENANCE = """
SELECT turn_id, plan, kv_source, requested_revision, prefill_engine, artifact_revision, decode_engine, decode_revision,
       first_divergence
FROM audit.turn_provenance WHERE conversation_id = %s ORDER BY completed_at
"""
REFUSALS = """
SELECT turn_id, artifact_revision, engine_revision, reason, differing
FROM audit.refusals WHERE conversation_id = %s ORDER BY position
"""
HITS = "SELECT count(*) AS hits FROM audit.cross_revision_hits"
PROMPT = "SELECT audit.prompt_of(%s) AS ids"
OUTPUT = "SELECT output AS ids FROM audit.turn_tokens WHERE turn_id = %s"

Row = dict[str, Any]


class Auditor:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def provenance(self, conversation: str) -> list[Row]:
        return self._rows(PROVENANCE, conversation)

    def refusals(self, conversation: str) -> list[Row]:
        return self._rows(REFUSALS, conversation)

    def cross_revision_hits(self) -> int:
        return int(self._rows(HITS)[0]["hits"])

    def prompt(self, turn: str) -> tuple[int, ...]:
        return tuple(self._rows(PROMPT, turn)[0]["ids"])

    def output(self, turn: str) -> tuple[int, ...]:
        return tuple(self._rows(OUTPUT, turn)[0]["ids"])

    def _rows(self, query: str, *parameters: str) -> list[Row]:
        with psycopg.connect(self._dsn, row_factory=dict_row) as connection:
            connection.execute("SET ROLE everturn_auditor")
            return connection.execute(query.encode(), parameters).fetchall()


def table(rows: Sequence[Row]) -> str:
    """Columns as wide as their widest value; digests and ids shortened to be told apart, not to be copied."""
    if not rows:
        return "   (no rows)"
    lines = [list(rows[0]), *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "   " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case list():
            return ", ".join(map(str, value)) or "-"
        case str() if value.startswith(("rev_", "boot_", "resp_", "kv_")):
            prefix, _, rest = value.partition("_")
            return f"{prefix}_{rest[:8]}"
        case _:
            return str(value)
