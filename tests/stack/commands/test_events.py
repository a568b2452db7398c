"""`everturn events` and `erase`, and what `everturn audit` does to the log, as an operator sees them."""

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine, make_url, text

from service import edit_flow
from service.domain.errors import InvalidInput
from service.domain.events import ConversationCreated
from service.edit_flow import Edit
from service.store import artifacts
from service.store.checkpoint import check_signature
from service.store.connection import make_engine
from service.store.signing import load_or_make_key, load_public_key
from stack.cli import main
from stack.integrity import sign_checkpoint, verify_log
from stack.postgres import EmbeddedPostgres
from tests.conftest import copied
from tests.flows.forks import ask, fork, serving
from tests.store.histories import ACME, CHAT, NOW, append, published, said, store
from tests.workers.kv_connector.stored import conversation, paths, put
from workers.kv_connector.local_store import LocalStore

Everturn = Callable[..., int]


@pytest.fixture
def everturn(database: str, tmp_path: Path) -> Everturn:
    return lambda *arguments: main(["--data", str(tmp_path), *arguments, "--database-url", database])


@pytest.fixture
def said_something(database: str) -> None:
    engine = make_engine(database, application_name="tests")
    store(engine, ConversationCreated(alias="a", metadata={"user": "u-17"}), said("hi \x00 \ud800"))
    store(engine, ConversationCreated(alias="a"), said("kept"), stream="conv_2")
    engine.dispose()


@pytest.mark.usefixtures("said_something")
def test_an_export_holds_each_event_once_and_goes_on_later(
    everturn: Everturn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "log.jsonl"
    assert everturn("events", "export", "--content", "--out", str(out)) == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["stream"], line["version"]) for line in lines] == [
        ("conv_1", 1),
        ("conv_1", 2),
        ("conv_2", 1),
        ("conv_2", 2),
    ]
    assert lines[1]["content"] == "hi \x00 \ud800"
    assert f"4 events; go on later with --after {lines[-1]['cursor']}" in capsys.readouterr().err
    assert everturn("events", "export", "--after", lines[1]["cursor"]) == 0
    rest = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["cursor"] for line in rest] == [lines[2]["cursor"], lines[3]["cursor"]]
    assert "content" not in rest[1]


@pytest.mark.usefixtures("said_something")
def test_an_export_overwrites_nothing_and_refuses_what_is_no_cursor(
    everturn: Everturn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (out := tmp_path / "log.jsonl").touch()
    assert everturn("events", "export", "--out", str(out)) == 1
    assert f"everturn: {out} exists" in capsys.readouterr().err
    assert everturn("events", "export", "--after", "x") == 1
    assert "'after' is no cursor: 'x'" in capsys.readouterr().err


@pytest.mark.usefixtures("said_something")
def test_erasing_a_conversation_takes_its_words_and_its_kv_but_not_shared_blocks(
    everturn: Everturn, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kv = LocalStore(tmp_path / "kv")
    own = put(kv, "kv_own00000", conversation(1, shared=2))
    other = put(kv, "kv_other000", conversation(2, shared=2))
    with engine.begin() as conn:
        listed = published("kv_own00000", expires_ms=4_000_000_000_000)
        artifacts.record(conn, tenant=ACME, conversation=CHAT, published=listed, now=NOW)
    assert everturn("erase", "conversation", CHAT, "--tenant", ACME) == 0
    told = capsys.readouterr().out
    assert "conv_1 is erased: 2 events lost what was said" in told
    assert "1 manifests and" in told
    assert "2 blocks stay" in told
    assert "backups" in told
    assert not kv.manifest_path(own.tenant, own.artifact).exists()
    assert all(path.exists() for path in paths(kv, other))
    assert [path.exists() for path in paths(kv, own)][:2] == [True, True]
    assert not any(path.exists() for path in paths(kv, own)[2:])
    assert everturn("erase", "conversation", CHAT, "--tenant", ACME) == 0
    assert "was erased before" in capsys.readouterr().out


@pytest.mark.usefixtures("said_something")
def test_a_person_is_erased_by_their_metadata_and_first_only_shown(
    everturn: Everturn, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert everturn("erase", "end-user", "user=u-17", "--tenant", ACME, "--dry-run") == 0
    assert capsys.readouterr().out == "conv_1\n"
    assert everturn("erase", "end-user", "user=u-17", "--tenant", ACME) == 0
    with engine.connect() as conn:
        kept = conn.execute(text("SELECT DISTINCT stream FROM event_contents")).scalars().all()
    assert kept == ["conv_2"]
    assert everturn("erase", "end-user", "user=u-17", "--tenant", ACME) == 1
    assert "No conversation of tenant acme has 'user' as 'u-17'" in capsys.readouterr().err


def test_a_persons_forks_are_shown_and_go_with_what_they_came_from(
    everturn: Everturn, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine.begin() as conn:
        serving(conn)
        chat = ask(conn, "one").conversation
        edit = Edit(tenant=ACME, conversation=chat, head=None, now=NOW)
        edit_flow.update_conversation(conn, edit, {"user": "u-17"})
        child = fork(conn, chat, metadata={})
        grandchild = fork(conn, ask(conn, "two", child).conversation)
    assert everturn("erase", "end-user", "user=u-17", "--tenant", ACME, "--dry-run") == 0
    assert capsys.readouterr().out == f"{chat}, with its forks {child}, {grandchild}\n"
    assert everturn("erase", "conversation", grandchild, "--tenant", ACME) == 0
    assert f"what it began with is said in {child}, and stays" in capsys.readouterr().out
    assert everturn("erase", "end-user", "user=u-17", "--tenant", ACME) == 0
    assert f"{chat} is erased, with its forks {child}, {grandchild}: " in capsys.readouterr().out
    with engine.connect() as conn:
        assert conn.execute(text("SELECT count(*) FROM event_contents")).scalar_one() == 0


@pytest.mark.usefixtures("said_something")
def test_after_an_older_backup_was_restored_all_is_erased_again_that_had_been(
    everturn: Everturn,
    postgres_server: EmbeddedPostgres,
    database: str,
    engine: Engine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = make_url(database)
    with copied(postgres_server, str(url.database)) as restored:
        with engine.begin() as conn:
            append(conn, ConversationCreated(alias="a"), said("after the backup"), stream="conv_3")
        for chat in ("conv_1", "conv_3"):
            everturn("erase", "conversation", chat, "--tenant", ACME, "--reason", f"asked for {chat}")
        out = tmp_path / "log.jsonl"
        everturn("events", "export", "--out", str(out))
        capsys.readouterr()
        again = ["erase", "again", str(out), "--database-url", restored]
        assert main(["--data", str(tmp_path), *again]) == 0
        told = capsys.readouterr().out
        with psycopg.connect(restored.replace("postgresql+psycopg", "postgresql")) as found:
            kept = found.execute("SELECT DISTINCT stream FROM event_contents").fetchall()
            reasons = found.execute("SELECT reason FROM audit.erasures").fetchall()
    assert "conv_3 of tenant acme is not in this record" in told
    assert "conv_1 is erased: 2 events lost what was said" in told
    assert (kept, reasons) == ([("conv_2",)], [("asked for conv_1",)])


@pytest.mark.parametrize("line", ["not json", "[1]", '{"type": "conversation.erased"}'])
def test_what_is_no_export_is_named_with_its_line(
    everturn: Everturn, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    (out := tmp_path / "log.jsonl").write_text('{"type": "turn.started"}\n' + line + "\n")
    assert everturn("erase", "again", str(out)) == 1
    assert f"{out}: line 2 is no event" in capsys.readouterr().err
    assert everturn("erase", "again", str(tmp_path / "none")) == 1
    assert "none cannot be read" in capsys.readouterr().err


def test_without_a_database_the_way_out_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "erase", "conversation", "c", "--tenant", "t"]) == 1
    assert "start one with `make up`, or give --database-url" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("port", "said"),
    [("1", "give another --database-url"), ("", "the database is not as this version needs it")],
)
def test_a_database_that_cannot_serve_is_told_in_one_line(
    template_database: str, empty_database: str, capsys: pytest.CaptureFixture[str], port: str, said: str
) -> None:
    url = f"postgresql://u:p@127.0.0.1:{port}/x" if port else empty_database
    assert main(["events", "export", "--database-url", url]) == 1
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.count("\n") == 1


@pytest.mark.usefixtures("said_something")
def test_a_log_is_verified_against_a_checkpoint_signed_earlier(
    engine: Engine, owner_engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, kept = tmp_path / "checkpoint.key", tmp_path / "c.jsonl"
    public = tmp_path / "checkpoint.key.pub"
    with engine.connect() as conn:
        assert sign_checkpoint(conn, out=kept, key=key) == 0
    assert check_signature(kept, load_public_key(public)) == 2
    with engine.begin() as conn:
        append(conn, said("more", "msg_2"), after=2)
    with engine.connect() as conn:
        assert verify_log(conn, against=kept, public_key=public) == 0
        assert verify_log(conn, against=None, public_key=public) == 0
    assert "5 events in 2 streams, 0 of them erased: no broken chains" in capsys.readouterr().out
    with owner_engine.begin() as conn:
        conn.execute(text("ALTER TABLE events DISABLE TRIGGER ALL"))
        conn.execute(text("DELETE FROM events WHERE stream = 'conv_2' AND stream_version = 2"))
        conn.execute(text("UPDATE events SET type = 'a.b' WHERE stream = 'conv_1' AND stream_version = 2"))
    with engine.connect() as conn:
        assert verify_log(conn, against=kept, public_key=public) == 1
    told = capsys.readouterr().out
    assert "BROKEN acme conv_1 version 2 (position 2): it is not what its chain was made of" in told
    assert "BROKEN acme conv_2 version 2 (no row): it was there at the checkpoint" in told
    load_or_make_key(tmp_path / "other.key")
    with engine.connect() as conn, pytest.raises(InvalidInput, match="not signed with this key"):
        verify_log(conn, against=kept, public_key=tmp_path / "other.key.pub")
