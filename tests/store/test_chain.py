"""Every way of changing history behind our back is found, by hashes that are not the database's own."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Connection, Engine, text

from service.domain.conversation import Conversation
from service.domain.errors import InvalidInput
from service.domain.events import ConversationErased, ConversationId
from service.store import checkpoint, event_store
from service.store.integrity import Break, Walked, verify
from service.store.signing import load_or_make_key, load_public_key
from tests.store.histories import ACME, CHAT, NOW, append, completed, created, pinned, said, started, store

OTHER = ConversationId("conv_2")
TRIGGERS_OFF = """
    ALTER TABLE events DISABLE TRIGGER ALL;
    ALTER TABLE event_contents DISABLE TRIGGER ALL;
"""
REMADE = """
    UPDATE events SET chain = made.chain FROM (
        SELECT position, audit.chained('\\x'::bytea, audit.event_digest(
            tenant_id, stream, stream_version, type, schema_number, occurred_at, payload, commitment
        )) OVER (PARTITION BY tenant_id, stream ORDER BY stream_version) AS chain FROM events
    ) AS made WHERE made.position = events.position
"""
"""What an attacker runs who knows how chains are made."""

MAKE_KEY = Ed25519PrivateKey.generate


@pytest.fixture
def history(engine: Engine) -> None:
    """Two conversations of the same shape."""
    store(engine, created(), said("one", "msg_1"), said("two", "msg_2"), said("three", "msg_3"))
    store(engine, created(), said("uno", "msg_4"), said("due", "msg_5"), said("tre", "msg_6"), stream=OTHER)


@pytest.fixture
def tamper(history: None, owner_engine: Engine) -> Callable[[str], None]:
    """As a superuser, past the triggers."""

    def tampered(sql: str) -> None:
        with owner_engine.begin() as conn:
            conn.execute(text(TRIGGERS_OFF))
            conn.execute(text(sql))

    return tampered


def breaks(engine: Engine) -> list[Break]:
    with engine.connect() as conn:
        return list(verify(conn, Walked()))


def breaks_in_sql(engine: Engine) -> set[tuple[str, int]]:
    with engine.connect() as conn:
        found = conn.execute(
            text("SELECT stream, min(stream_version) FROM audit.chain_breaks GROUP BY stream")
        )
        return {(stream, version) for stream, version in found}


@pytest.mark.usefixtures("history")
def test_an_untouched_log_verifies_and_is_counted(engine: Engine) -> None:
    walked = Walked()
    with engine.connect() as conn:
        assert list(verify(conn, walked)) == []
    assert (walked.streams, walked.events, walked.erased) == (2, 8, 0)
    assert breaks_in_sql(engine) == set()


def test_the_chain_goes_on_over_appends(conn: Connection) -> None:
    append(conn, created(), said("one \x00 \ud800"))
    append(conn, started(), pinned(), completed(), after=2)
    assert list(verify(conn, Walked())) == []


def test_a_log_is_walked_a_few_rows_at_a_time(engine: Engine, tamper: Callable[[str], None]) -> None:
    """What it holds of the server's answer is a cursor there, not the answer."""
    tamper("UPDATE events SET chain = sha256('') WHERE stream = 'conv_1' AND stream_version = 1")
    with engine.connect() as conn:
        walk = verify(conn, Walked())
        next(walk)
        cursors = text("SELECT count(*) FROM pg_cursors WHERE statement LIKE '%FROM events AS e%'")
        assert conn.execute(cursors).scalar_one() == 1
        assert list(walk) == []


EDITS = [
    ("UPDATE events SET payload = payload || '{\"role\": \"system\"}' WHERE stream = 'conv_1' AND stream_version = 3", 3, "not what its chain"),
    ("UPDATE events SET occurred_at = occurred_at + interval '1 us' WHERE stream = 'conv_1' AND stream_version = 2", 2, "not what its chain"),
    ("UPDATE events SET schema_number = 1, type = 'turn.failed' WHERE stream = 'conv_1' AND stream_version = 1", 1, "not what its chain"),
    ("UPDATE events SET commitment = sha256('') WHERE stream = 'conv_1' AND stream_version = 4", 4, "not what its chain"),
    ("UPDATE events SET chain = sha256('') WHERE stream = 'conv_1' AND stream_version = 2", 2, "not what its chain"),
    ("DELETE FROM events WHERE stream = 'conv_1' AND stream_version = 2", 3, "1 before it are gone"),
    ("DELETE FROM events WHERE stream = 'conv_1' AND stream_version = 1", 2, "1 before it are gone"),
    ("UPDATE event_contents SET content = 'ONE' WHERE stream = 'conv_1' AND stream_version = 2", 2, "not what it committed to"),
    ("DELETE FROM event_contents WHERE stream = 'conv_1' AND stream_version = 3", 3, "no tombstone"),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "version", "reason"), EDITS)
def test_an_edit_by_a_superuser_is_found_at_its_row(
    engine: Engine, tamper: Callable[[str], None], edit: str, version: int, reason: str
) -> None:
    tamper(edit)
    found = [one for one in breaks(engine) if one.position is not None]
    assert [(one.stream, one.version) for one in found] == [(CHAT, version)]
    assert reason in found[0].reason


def test_two_events_in_each_others_place_are_found(engine: Engine, tamper: Callable[[str], None]) -> None:
    tamper("""
        ALTER TABLE events DROP CONSTRAINT ck_events_stream_version;
        UPDATE events SET stream_version = -stream_version WHERE stream = 'conv_1' AND stream_version IN (2, 3);
        UPDATE events SET stream_version = 5 + stream_version WHERE stream = 'conv_1' AND stream_version < 0;
        UPDATE event_contents SET stream_version = 105 - stream_version
            WHERE stream = 'conv_1' AND stream_version IN (2, 3);
        UPDATE event_contents SET stream_version = stream_version - 100 WHERE stream_version > 100
    """)
    [found] = breaks(engine)
    assert (found.stream, found.version) == (CHAT, 2)


def test_two_conversations_in_each_others_place_are_found(
    engine: Engine, tamper: Callable[[str], None]
) -> None:
    swap = (
        "UPDATE {0} SET stream = 'x' WHERE stream = 'conv_1'; UPDATE {0} SET stream = 'conv_1' WHERE stream = 'conv_2';"
        "UPDATE {0} SET stream = 'conv_2' WHERE stream = 'x';"
    )
    tamper(swap.format("events") + swap.format("event_contents"))
    assert [(one.stream, one.version) for one in breaks(engine)] == [(CHAT, 1), (OTHER, 1)]
    assert breaks_in_sql(engine) == {(CHAT, 1), (OTHER, 1)}


def test_a_later_event_at_an_earlier_position_is_found(engine: Engine, tamper: Callable[[str], None]) -> None:
    tamper("""
        ALTER TABLE events ALTER COLUMN position DROP IDENTITY;
        UPDATE events SET position = -1 WHERE stream = 'conv_1' AND stream_version = 3
    """)
    assert [(one.stream, one.version) for one in breaks(engine)] == [(CHAT, 3)]


def test_content_without_its_event_is_found(engine: Engine, tamper: Callable[[str], None]) -> None:
    tamper("DELETE FROM events WHERE stream = 'conv_1' AND stream_version = 4")
    [found] = breaks(engine)
    assert (found.stream, found.version, found.position) == (CHAT, 4, None)


CUT = "DELETE FROM {} WHERE stream = 'conv_1' AND stream_version > 2"


def test_a_tail_cut_off_and_a_chain_made_anew_are_found_by_a_checkpoint_alone(
    engine: Engine, tamper: Callable[[str], None], tmp_path: Path
) -> None:
    kept = tmp_path / "checkpoint.jsonl"
    key = MAKE_KEY()
    with engine.connect() as conn:
        assert checkpoint.write(kept, checkpoint.heads(conn), key, NOW) == 2
        assert list(checkpoint.compare(conn, kept)) == []
    tamper(CUT.format("events") + ";" + CUT.format("event_contents"))
    tamper(
        "UPDATE events SET payload = '{\"alias\": \"other\"}' WHERE stream = 'conv_2' AND stream_version = 1"
    )
    tamper(REMADE)
    assert breaks(engine) == []
    assert breaks_in_sql(engine) == set()
    assert checkpoint.check_signature(kept, key.public_key()) == 2
    with engine.connect() as conn:
        cut, anew = checkpoint.compare(conn, kept)
    assert (cut.stream, cut.version, cut.position) == (CHAT, 4, None)
    assert "cut off" in cut.reason
    assert (anew.stream, anew.version) == (OTHER, 4)
    assert "made anew" in anew.reason


@pytest.mark.usefixtures("history")
def test_what_was_appended_since_a_checkpoint_does_not_disturb_it(engine: Engine, tmp_path: Path) -> None:
    kept = tmp_path / "checkpoint.jsonl"
    with engine.begin() as conn:
        checkpoint.write(kept, checkpoint.heads(conn), MAKE_KEY(), NOW)
        append(conn, said("later", "msg_9"), after=4)
    with engine.connect() as conn:
        assert list(checkpoint.compare(conn, kept)) == []


@pytest.mark.usefixtures("history")
def test_a_checkpoint_that_was_changed_or_cut_or_signed_by_another_is_refused(
    engine: Engine, tmp_path: Path
) -> None:
    kept, key = tmp_path / "checkpoint.jsonl", MAKE_KEY()
    with engine.connect() as conn:
        checkpoint.write(kept, checkpoint.heads(conn), key, NOW)
    whole = kept.read_bytes()
    lines = whole.splitlines(keepends=True)
    for forged in (
        whole.replace(b"conv_1", b"conv_9"),
        b"".join([lines[0], *lines[2:]]),
        b"".join(lines[:-1]),
        b"",
        whole + b"\n",
    ):
        kept.write_bytes(forged)
        with pytest.raises(InvalidInput, match=r"not signed with this key|no whole checkpoint"):
            checkpoint.check_signature(kept, key.public_key())
    kept.write_bytes(whole)
    with pytest.raises(InvalidInput, match="not signed with this key"):
        checkpoint.check_signature(kept, MAKE_KEY().public_key())


def test_a_checkpoint_is_never_overwritten(tmp_path: Path) -> None:
    kept = tmp_path / "checkpoint.jsonl"
    checkpoint.write(kept, [], MAKE_KEY(), NOW)
    with pytest.raises(InvalidInput, match="never overwritten"):
        checkpoint.write(kept, [], MAKE_KEY(), NOW)


def test_the_signing_key_is_made_once_and_its_public_half_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "checkpoint.key"
    made = load_or_make_key(path)
    assert load_or_make_key(path).private_bytes_raw() == made.private_bytes_raw()
    assert load_public_key(path.with_name("checkpoint.key.pub")) == made.public_key()
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("found", [b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_what_is_no_key_is_refused_by_name(tmp_path: Path, found: bytes) -> None:
    path = tmp_path / "key"
    path.write_bytes(found)
    for load in (load_or_make_key, load_public_key):
        with pytest.raises(InvalidInput, match=str(path)):
            load(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_public_key(tmp_path / "nowhere")


def test_content_goes_only_where_a_tombstone_stands(engine: Engine) -> None:
    store(engine, created(), said("one"))
    with (
        engine.connect() as conn,
        pytest.raises(Exception, match=r"only once its stream holds a conversation\.erased"),
    ):
        event_store.erase_contents(conn, tenant=ACME, stream=CHAT)


def test_an_erased_conversation_verifies_and_folds_to_nothing_that_was_said(engine: Engine) -> None:
    store(engine, created(), said("one \x00"), started(), pinned(), completed())
    with engine.begin() as conn:
        append(conn, ConversationErased(by="key_1", reason="asked for"), after=5)
        assert event_store.erase_contents(conn, tenant=ACME, stream=CHAT) == 2
    assert breaks(engine) == []
    with engine.connect() as conn:
        state = event_store.load_conversation(conn, ACME, CHAT)
        assert conn.execute(text("SELECT prompt_added, output FROM audit.turn_tokens")).one() == (None, None)
    assert isinstance(state, Conversation)
    assert (state.items, state.window, state.last, state.version) == ((), (), None, 6)
    assert state.erased is not None


def test_content_that_comes_back_after_its_erasure_is_found(engine: Engine, owner_engine: Engine) -> None:
    store(engine, created(), said("one"))
    with engine.begin() as conn:
        saved = conn.execute(text("SELECT * FROM event_contents")).one()._asdict()
        append(conn, ConversationErased(by="key_1", reason=""), after=2)
        event_store.erase_contents(conn, tenant=ACME, stream=CHAT)
    with owner_engine.begin() as conn:
        conn.execute(
            text(
                "INSERT INTO event_contents VALUES (:tenant_id, :stream, :stream_version, :salt, :content, :tokens)"
            ),
            saved,
        )
    [found] = breaks(engine)
    assert (found.version, found.reason) == (2, "its conversation was erased, but its content is there")


def test_the_salt_makes_equal_words_unlike(conn: Connection) -> None:
    append(conn, created(), said("yes", "msg_1"), said("yes", "msg_2"))
    rows = conn.execute(
        text("SELECT commitment FROM events WHERE commitment IS NOT NULL ORDER BY 1")
    ).scalars()
    assert all(first != second for first, second in pairwise(rows))
