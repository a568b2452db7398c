"""KV of what was erased leaves the store; what could not be deleted, or is not there, is on record, and tried again."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text

from service.domain.artifact import ArtifactId
from service.settings import Settings
from service.store import kv_deletions
from tests.store.histories import ACME, CHAT, NOW
from tests.workers.kv_connector.stored import conversation, paths, put
from workers.kv_collector import Limits, main, run
from workers.kv_connector.local_store import LocalStore
from workers.kv_forgetter import Forgotten, forget_erased, forgetting

OWN, OTHER, GONE = (ArtifactId(name) for name in ("kv_own00000", "kv_other000", "kv_gone0000"))


@pytest.fixture
def kv(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "kv")


def ask(engine: Engine, *artifacts: ArtifactId) -> None:
    with engine.begin() as conn:
        kv_deletions.ask(conn, tenant=ACME, conversation=CHAT, artifacts=artifacts, now=NOW)


def shown(engine: Engine) -> dict[str, tuple[str, int]]:
    """State and tries of each, as an auditor sees them."""
    with engine.begin() as conn:
        rows = conn.execute(text("SELECT artifact_id, state, tries FROM audit.kv_deletions"))
        return {row.artifact_id: (row.state, row.tries) for row in rows}


def later(engine: Engine) -> None:
    with engine.begin() as conn:
        conn.execute(text("UPDATE kv_deletions SET tried_at = tried_at - interval '2 hours'"))


def test_what_was_asked_for_goes_and_what_others_share_stays(engine: Engine, kv: LocalStore) -> None:
    own, other = put(kv, OWN, conversation(1, shared=2)), put(kv, OTHER, conversation(2, shared=2))
    ask(engine, OWN, GONE)
    assert shown(engine) == {OWN: ("waiting", 0), GONE: ("waiting", 0)}
    told = forget_erased(engine, str(kv.root))
    assert told == Forgotten(artifacts=1, blocks=1, shared=2, missing=1)
    assert shown(engine) == {OWN: ("deleted", 1), GONE: ("not there", 1)}
    assert not kv.manifest_path(own.tenant, own.artifact).exists()
    assert [path.exists() for path in paths(kv, own)] == [True, True, False]
    assert all(path.exists() for path in paths(kv, other))


def test_nothing_is_looked_for_twice_but_by_who_names_it(engine: Engine, kv: LocalStore) -> None:
    ask(engine, OWN)
    forget_erased(engine, str(kv.root))
    put(kv, OWN, conversation(1))
    ask(engine, OWN)
    assert forget_erased(engine, str(kv.root)) == Forgotten()
    assert forget_erased(engine, str(kv.root), only=[OWN]).artifacts == 1


def test_what_cannot_be_deleted_says_why_and_is_tried_again_later(
    engine: Engine, kv: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = put(kv, OWN, conversation(1))
    ask(engine, OWN)
    remove = LocalStore.remove

    def full_of_errors(self: LocalStore, name: str) -> bool:
        if name.startswith("blocks/"):
            raise PermissionError(13, "Permission denied")
        return remove(self, name)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "remove", full_of_errors)
        [(artifact, why)] = forget_erased(engine, str(kv.root)).failed
    assert artifact == OWN
    assert "Permission denied" in why
    assert shown(engine) == {OWN: ("failed", 1)}
    with engine.begin() as conn:
        left = conn.execute(text("SELECT failure FROM audit.kv_deletions")).scalar_one()
    assert "blocks/" in left
    assert forget_erased(engine, str(kv.root)) == Forgotten(), "not so soon"
    later(engine)
    assert all(path.exists() for path in paths(kv, own))
    assert forget_erased(engine, str(kv.root)) == Forgotten(artifacts=1, blocks=1)
    assert shown(engine) == {OWN: ("deleted", 2)}
    assert not any(path.exists() for path in paths(kv, own))


def test_a_block_that_another_artifact_needs_by_now_is_not_taken_on_a_later_try(
    engine: Engine, kv: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = put(kv, OWN, conversation(1))
    ask(engine, OWN)
    remove = LocalStore.remove
    with monkeypatch.context() as patch:

        def refuses(self: LocalStore, name: str) -> bool:
            if name.startswith("blocks/"):
                raise PermissionError(13, "Permission denied")
            return remove(self, name)  # type: ignore[arg-type]

        patch.setattr(LocalStore, "remove", refuses)
        assert forget_erased(engine, str(kv.root)).failed
    put(kv, OTHER, conversation(1))
    later(engine)
    forget_erased(engine, str(kv.root))
    assert all(path.exists() for path in paths(kv, own))
    assert shown(engine) == {OWN: ("deleted", 2)}


def test_a_store_that_is_not_there_leaves_everything_to_do(engine: Engine, tmp_path: Path) -> None:
    ask(engine, OWN)
    [(artifact, why)] = forget_erased(engine, str(tmp_path / "nowhere")).failed
    assert (artifact, "nowhere" in why) == (OWN, True)
    assert shown(engine) == {OWN: ("failed", 1)}
    with engine.begin() as conn:
        assert conn.execute(text("SELECT store FROM kv_deletions")).scalar_one() == str(tmp_path / "nowhere")


def test_two_workers_never_take_the_same(engine: Engine) -> None:
    ask(engine, OWN, OTHER)
    with engine.begin() as one, engine.begin() as two:
        first = kv_deletions.claim(one, store="a", limit=1)
        second = kv_deletions.claim(two, store="b", limit=5)
    assert len(first) == len(second) == 1
    assert first[0].artifact != second[0].artifact


def test_the_collector_forgets_at_each_pass_and_outlives_its_database(
    engine: Engine, database: str, kv: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    own = put(kv, OWN, conversation(1))
    ask(engine, OWN)
    given = {"database_url": SecretStr(database), "broker_url": SecretStr("redis://127.0.0.1:9/0")}
    with forgetting(Settings.model_validate(given), str(kv.root)) as forget:
        run(kv, Limits(), [None], forget)
    assert shown(engine) == {OWN: ("deleted", 1)}
    assert not kv.manifest_path(own.tenant, own.artifact).exists()
    nowhere = {"database_url": SecretStr("postgresql://u:p@127.0.0.1:1/x")}
    with forgetting(Settings.model_validate(given | nowhere), str(kv.root)) as forget:
        run(kv, Limits(), [None, None], forget)
    assert "what was erased has to wait for the database" in caplog.text


def test_forgetting_needs_a_database(
    kv: LocalStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EVERTURN_DATABASE_URL", raising=False)
    with pytest.raises(SystemExit):
        main(["--store", str(kv.root), "--forget-erased"])
    assert "--forget-erased: EVERTURN_DATABASE_URL" in capsys.readouterr().err
