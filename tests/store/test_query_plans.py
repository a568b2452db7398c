"""What a turn asks of a long log is answered from an index, whatever the log's length."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from sqlalchemy import Connection, TextClause, event, text

from service.store import ancestry, families, retention
from tests.store.histories import append, created, said

FAR = datetime(2100, 1, 1, tzinfo=UTC)
ROWS = 20_000

FILL = text("""
    INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload,
                        commitment, chain)
    SELECT 'acme', 'conv_' || number / 40, 1 + number % 40, kind, 1, now(),
           jsonb_build_object('turn', 'resp_' || number / 4, 'attempt', 1, 'engine', 'boot_1', 'output', 3,
                              'prompt_tokens', 3, 'local_tokens', 0),
           sha256(''), sha256('')
    FROM generate_series(0, :rows) AS number,
         LATERAL (SELECT (ARRAY['message.accepted', 'turn.started', 'turn.pinned', 'turn.completed'])[1 + number % 4])
         AS named (kind)
""")

FILL_CONTENTS = text("""
    INSERT INTO event_contents (tenant_id, stream, stream_version, salt, content)
    SELECT tenant_id, stream, stream_version, decode(repeat('00', 16), 'hex'), 'said' FROM events
""")


@pytest.fixture
def plan_of(owner_conn: Connection) -> Callable[[str], str]:
    """Explains queries over a log of many conversations, rolled back after the test."""
    owner_conn.execute(FILL, {"rows": ROWS})
    owner_conn.execute(FILL_CONTENTS)
    owner_conn.execute(text("ANALYZE events, event_contents"))

    def explain(query: str) -> str:
        return "\n".join(owner_conn.execute(text(f"EXPLAIN {query}")).scalars())

    return explain


def test_the_head_of_a_stream_is_one_step_into_the_index(plan_of: Callable[[str], str]) -> None:
    plan = plan_of("SELECT max(stream_version) FROM events WHERE tenant_id = 'acme' AND stream = 'conv_7'")
    assert "Index Only Scan Backward using uq_events_stream_version" in plan


def test_an_append_looks_at_one_row_however_long_the_log_is(
    plan_of: Callable[[str], str], owner_conn: Connection
) -> None:
    """The statement itself, as it is sent."""
    sent: list[tuple[str, dict[str, object]]] = []

    def note(
        _conn: object, _cursor: object, statement: str, parameters: dict[str, object], *_: object
    ) -> None:
        sent.append((statement, parameters))

    plan_of("SELECT 1")
    event.listen(owner_conn, "before_cursor_execute", note)
    append(owner_conn, created(), said("hi"), stream="conv_7", after=40)
    event.remove(owner_conn, "before_cursor_execute", note)
    [(statement, parameters)] = sent
    plan = "\n".join(owner_conn.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
    assert "Index Scan Backward using uq_events_stream_version on events" in plan
    assert "Seq Scan" not in plan


def test_a_conversation_is_read_without_passing_over_others(plan_of: Callable[[str], str]) -> None:
    plan = plan_of(
        "SELECT payload FROM events WHERE tenant_id = 'acme' AND stream = 'conv_7' ORDER BY stream_version"
    )
    assert "uq_events_stream_version" in plan
    assert "Seq Scan" not in plan


def test_the_provenance_of_one_turn_is_found_by_index(plan_of: Callable[[str], str]) -> None:
    plan = plan_of("SELECT * FROM audit.turn_provenance WHERE turn_id = 'resp_77'")
    for index in ("uq_events_turn_completed", "uq_events_turn_pinned", "uq_events_turn_started"):
        assert index in plan
    assert "Seq Scan" not in plan


def test_refusals_are_found_by_index(plan_of: Callable[[str], str]) -> None:
    assert "ix_events_refused" in plan_of("SELECT * FROM audit.refusals")


@pytest.mark.parametrize(
    ("query", "given"),
    [
        (ancestry.CHILDREN, {"tenant": "acme", "parent": "conv_7"}),
        (retention.LAST_AT, {"tenant": "acme", "stream": "conv_7"}),
        (retention.OVERDUE, {"tenant": "acme", "before": FAR, "after": "conv_1", "limit": 10}),
        (text("SELECT * FROM audit.forks"), {}),
        (families.FORKS, {"tenant": "acme", "parents": ["conv_7", "conv_8"], "own": "conv_7", "most": 64}),
    ],
    ids=["forks", "last said", "overdue", "audit", "relatives"],
)
def test_forks_and_ages_are_found_by_index(
    plan_of: Callable[[str], str], owner_conn: Connection, query: TextClause, given: dict[str, object]
) -> None:
    plan_of("SELECT 1")
    explained = text(f"EXPLAIN {query.text}").bindparams(**given)
    plan = "\n".join(owner_conn.execute(explained).scalars())
    assert "Seq Scan on events" not in plan, plan
