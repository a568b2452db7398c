"""`everturn kv` as an operator sees it."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from stack.cli import main
from stack.commands.kv import _recorded
from tests.domain.descriptors import V12
from tests.stack.answering import name_a_dead_proxy
from tests.workers.kv_connector.stored import conversation, names, put
from tests.workers.kv_connector.stores import Hands
from tests.workers.kv_connector.test_store import TRICKS
from workers.kv_connector.store import BlockStore, own_name


@pytest.fixture(autouse=True)
def stored(block_store: BlockStore) -> None:
    put(block_store, "kv_old00000", conversation(1, shared=2), created_ms=1_000)
    put(block_store, "kv_new00000", conversation(2, shared=2), created_ms=2_000)


@pytest.fixture
def kv(block_store: BlockStore, tmp_path: Path) -> Callable[..., int]:
    """The last --store that is given counts."""

    def run(action: str, *arguments: str) -> int:
        return main(["--data", str(tmp_path), "kv", action, "--store", block_store.address, *arguments])

    return run


def test_listing_shows_the_chosen_and_their_sum(
    kv: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kv("ls", "--until", "1970-01-01T00:00:02") == 0
    out = capsys.readouterr().out
    assert "kv_old00000" in out
    assert "kv_new00000" not in out
    assert "1 artifacts, 0.0 MB" in out


def test_the_sum_counts_what_is_shared_once(
    kv: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kv("stat") == 0
    assert "blocks       4," in capsys.readouterr().out


def test_damage_is_named_and_gives_status_1(
    kv: Callable[..., int], block_store: BlockStore, hands: Hands, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kv("verify") == 0
    name = names(put(block_store, "kv_bad00000", conversation(3)))[0]
    hands.write(name, hands.read(name) + b"\0")
    assert kv("verify") == 1
    out = capsys.readouterr().out
    assert f"kv_bad00000: block {own_name(name)} is not what was written" in out
    assert kv("quarantine", "kv_bad00000") == 0
    assert kv("verify") == 0


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[list[tuple[str, str]]]:
    """A running service that knows which artifacts a conversation has; gives what it was asked, and with which key."""
    asked: list[tuple[str, str]] = []

    class Service(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["authorization"]))
            body = json.dumps({"data": [{"artifact": "kv_new00000"}, {"artifact": "kv_evicted00"}]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "run").mkdir()
        url = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "run" / "ready.json").write_text(json.dumps({"url": url}))
        (tmp_path / "keys.json").write_text(json.dumps({"operator_key": "secret"}))
        yield asked
        server.shutdown()


def test_a_conversation_chooses_what_the_service_recorded_for_it(
    kv: Callable[..., int], recorded: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kv("forget", "--conversation", "conv/1") == 0
    assert "forgotten: 1 artifacts, 1 blocks" in capsys.readouterr().out
    assert recorded == [("/admin/conversations/conv%2F1/artifacts", "Bearer secret")]
    assert kv("ls") == 0
    out = capsys.readouterr().out
    assert "kv_old00000" in out
    assert "kv_new00000" not in out


def test_the_service_on_this_machine_is_not_asked_through_a_proxy(
    recorded: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_a_dead_proxy(monkeypatch)
    assert _recorded(tmp_path, "conv_1") == {"kv_new00000", "kv_evicted00"}
    assert len(recorded) == 1


def test_a_conversation_and_handles_choose_what_both_name(
    kv: Callable[..., int], recorded: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert kv("ls", "kv_old00000", "--conversation", "conv_1") == 0
    assert "0 artifacts" in capsys.readouterr().out
    assert len(recorded) == 1


def test_forgetting_needs_a_choice(kv: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert kv("forget") == 1
    assert "name handles, --revision" in capsys.readouterr().err
    assert kv("forget", "--revision", V12.digest[:14]) == 0
    assert "forgotten: 2 artifacts, 4 blocks" in capsys.readouterr().out


def test_what_was_put_aside_is_forgotten_apart(
    kv: Callable[..., int], block_store: BlockStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kv("quarantine", "--all") == 0
    assert kv("forget", "--all") == 0
    assert "6 quarantined files are untouched" in capsys.readouterr().out
    assert kv("forget", "--quarantined") == 0
    assert not list(block_store.list("quarantine"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "../../etc/passwd"], "'../../etc/passwd' is no artifact"),
        (["ls", "--store", "/nowhere"], "--store '/nowhere' is no folder"),
        (["ls", "--conversation", "conv_1"], "--conversation needs the running service"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    kv: Callable[..., int], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert kv(*arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("action", ["ls", "stat", "verify", "quarantine", "forget"])
def test_a_handle_that_is_none_touches_nothing(
    kv: Callable[..., int], block_store: BlockStore, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    before = [list(block_store.list(folder)) for folder in ("blocks", "manifests", "quarantine")]
    for trick in TRICKS:
        assert kv(action, "kv_old00000", trick) == 1
        error = capsys.readouterr().err
        assert "is no artifact" in error
        assert error.count("\n") == 1
        assert len(error) < 300
    assert [list(block_store.list(folder)) for folder in ("blocks", "manifests", "quarantine")] == before


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ("s3://no-such-bucket", "--store 's3://no-such-bucket' does not answer"),
        ("gs://bucket", "--store 'gs://bucket' is no KV store: give a folder, or s3://BUCKET/PREFIX"),
        ("s3://", "names no bucket: give s3://BUCKET/PREFIX"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_a_store_that_cannot_be_used_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str], store: str, message: str
) -> None:
    assert main(["kv", "ls", "--store", store]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_time_must_be_one(kv: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kv("ls", "--since", "yesterday")
    assert "'yesterday' is no time such as 2026-01-31T12:00" in capsys.readouterr().err
