"""A real worker's beat: it erases what is too old, and has a checkpoint written, without anybody asking."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from service.store import keys, retention
from service.store.checkpoint import check_signature
from service.store.signing import load_public_key
from tests.store.histories import ACME, NOW, append, created, said
from tests.workers.celery_worker import REPOSITORY, until
from tests.workers.conftest import NewWorker

WITHIN_S = 60.0


def test_retention_and_checkpoints_need_nobody(
    store: Engine, new_worker: NewWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, key = tmp_path / "checkpoints", tmp_path / "audit.key"
    folder.mkdir()
    monkeypatch.setenv("EVERTURN_CHECKPOINT_FOLDER", str(folder))
    monkeypatch.setenv("EVERTURN_CHECKPOINT_KEY", str(key))
    with store.begin() as conn:
        keys.create_tenant(conn, ACME)
        retention.set_retention(conn, ACME, after_days=30, by="test", now=NOW)
        append(conn, created(), said("long ago"))

    def left() -> int:
        with store.begin() as conn:
            count: int = conn.execute(text("SELECT count(*) FROM event_contents")).scalar_one()
            return count

    new_worker().start()
    until(lambda: left() == 0, "what is too old is erased", WITHIN_S)
    until(lambda: any(folder.glob("heads-*.jsonl")), "a checkpoint is written", WITHIN_S)
    [written] = sorted(folder.glob("heads-*.jsonl"))[:1]
    assert check_signature(written, load_public_key(key.with_name("audit.key.pub"))) == 1


def test_a_worker_that_could_sign_nothing_does_not_start(tmp_path: Path) -> None:
    given = {"EVERTURN_DATABASE_URL": "postgresql://x", "EVERTURN_CHECKPOINT_FOLDER": str(tmp_path)}
    started = subprocess.run(
        [sys.executable, "-c", "import workers.celery_app"],
        cwd=REPOSITORY,
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 1
    assert started.stderr.startswith(
        "everturn: EVERTURN_CHECKPOINT_FOLDER is set, and EVERTURN_CHECKPOINT_KEY is not"
    )
