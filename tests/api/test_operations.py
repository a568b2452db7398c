"""What tells an operator that the service is well, and what it did."""

from sqlalchemy import text

from stack.valkey import EmbeddedValkey
from tests.api.stack import Stack, running_stack


def test_alive_whatever_else_is_down(shared_stack: Stack) -> None:
    assert shared_stack.http.get("/healthz").json() == {"status": "ok"}


def test_ready_with_a_database_and_the_rest_is_shown(shared_stack: Stack) -> None:
    answer = shared_stack.http.get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["database"] == "ok"
    assert answer.json()["broker"] is False
    assert answer.json()["ready_engines"] == {"production": 1}


def test_a_broker_that_answers_is_shown(database: str, valkey_server: EmbeddedValkey) -> None:
    with running_stack(database, broker_url=valkey_server.url()) as stack:
        assert stack.http.get("/readyz").json()["broker"] is True


def test_not_ready_without_the_schema(database: str) -> None:
    with running_stack(database) as stack:
        with stack.owner.begin() as conn:
            conn.execute(text("ALTER TABLE aliases RENAME TO elsewhere"))
        answer = stack.http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["status"] == "unready"


def test_a_killed_database_session_is_not_noticed_by_clients(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.ask("hello")
    with stack.owner.begin() as conn:
        conn.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'everturn-api' AND datname = current_database()"
            )
        )
    assert stack.ask("hello again")["status"] == "completed"


def test_metrics_show_turns_that_wait_for_workers_and_those_that_were_recovered(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.turn_bell.unheard = True
    stack.post(input="hello", background=True)
    with stack.owner.begin() as conn:
        conn.execute(text("UPDATE turns SET opened_at = opened_at - interval '1 min'"))
    lines = stack.http.get("/metrics").text.splitlines()
    assert 'everturn_turn_queue_depth{kind="background",state="queued"} 1.0' in lines
    [oldest] = [line for line in lines if line.startswith("everturn_turn_queue_oldest_seconds{")]
    assert 60 <= float(oldest.split()[-1]) < 120
    assert "everturn_turns_recovered 0.0" in lines
    with stack.owner.begin() as conn:
        conn.execute(text("UPDATE turns SET recovered_at = opened_at"))
    assert "everturn_turns_recovered 1.0" in stack.http.get("/metrics").text.splitlines()


def test_metrics_count_turns_by_plan_and_refusals_by_reason(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.await_artifacts(conversation, 1)
    stack.store.clear()
    stack.ask("two", conversation=conversation)
    stack.start_engine("b", alias=True)
    stack.ask("three", conversation=conversation)
    lines = stack.http.get("/metrics").text.splitlines()
    assert 'everturn_turns_total{plan="cold",status="completed"} 1.0' in lines
    assert 'everturn_turns_total{plan="rebuild",status="completed"} 1.0' in lines
    assert 'everturn_kv_refusals_total{reason="manifest_missing"} 1.0' in lines
    assert "everturn_time_to_first_token_seconds_count 3.0" in lines
    assert 'everturn_rebuild_wait_seconds_count{state="done"} 1.0' in lines
