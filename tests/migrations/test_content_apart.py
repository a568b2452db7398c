"""What was stored before content stood apart reads as before, and its chains verify."""

import psycopg
import pytest
from alembic import command
from alembic.config import Config

from service.domain.events import ConversationCreated, MessageAccepted
from service.store import event_store
from service.store.connection import make_engine
from service.store.integrity import Walked, verify
from service.store.migrate import upgrade
from tests.migrations.test_schema import REPOSITORY, libpq
from tests.store.histories import ACME, CHAT, NOW, completed, pinned, said, started, store

OLD_ROWS = """
    INSERT INTO events (tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, content, tokens)
    VALUES
        ('acme', 'conv_1', 1, 'conversation.created', 1, now(),
         '{"alias": "production", "on_upgrade": null, "metadata": {"topic": "old"}}', NULL, NULL),
        ('acme', 'conv_1', 2, 'message.accepted', 1, now(), '{"item": "msg_1", "role": "user"}', '\\x6869edbfbf', NULL),
        ('acme', 'conv_2', 1, 'conversation.created', 1, now(),
         '{"alias": "production", "on_upgrade": null, "metadata": {}}', NULL, NULL)
"""


@pytest.fixture
def migrated(empty_database: str) -> str:
    config = Config()
    config.set_main_option("script_location", str(REPOSITORY / "migrations"))
    config.attributes["url"] = empty_database
    command.upgrade(config, "0001")
    with psycopg.connect(libpq(empty_database)) as connection:
        connection.execute(OLD_ROWS)
    upgrade(empty_database)
    return empty_database


def test_old_events_read_as_before_and_verify_and_go_on(migrated: str) -> None:
    engine = make_engine(migrated, application_name="tests")
    store(engine, started(), pinned(), completed(), stream="conv_3")
    with engine.begin() as conn:
        created, message = event_store.read(conn, tenant=ACME, stream=CHAT)
        assert created == ConversationCreated(alias="production", metadata={"topic": "old"})
        assert isinstance(message, MessageAccepted)
        assert message.text == "hi\udfff"
        event_store.append(
            conn, tenant=ACME, stream=CHAT, expected_version=2, events=[said("more", "msg_2")], now=NOW
        )
        walked = Walked()
        assert list(verify(conn, walked)) == []
        assert (walked.streams, walked.events) == (3, 7)
    engine.dispose()


def test_history_is_append_only_again_after_the_backfill(migrated: str) -> None:
    with (
        psycopg.connect(libpq(migrated)) as connection,
        pytest.raises(psycopg.errors.RestrictViolation, match="append-only"),
    ):
        connection.execute("UPDATE events SET payload = '{}'")
