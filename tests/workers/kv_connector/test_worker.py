"""Every job that a step hands over is answered, or the engine would hold its request's blocks for ever."""

from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from service.domain.evidence import Refusal
from tests.workers.kv_connector.paged_fakes import load_job, manifest_of, save, side
from workers.kv_connector.jobs import Jobs, SaveJob
from workers.kv_connector.worker import WorkerSide

HANDLE = "kv_0123456789abcdef"


def test_jobs_of_a_step_that_cannot_be_started_are_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = side(tmp_path)
    save(one, HANDLE)
    load = load_job(manifest_of(one, HANDLE))
    written = SaveJob(
        request_id="s", attempt="a", tenant=load.tenant, artifact=load.artifact, lease_s=1, blocks=()
    )

    def broken() -> object:
        msg = "CUDA error"
        raise RuntimeError(msg)

    monkeypatch.setattr(one.paged.device, "mark", broken)
    worker = WorkerSide(one.paged, one.loader, one.saver)
    worker.start(Jobs(loads=(load,), saves=(written,)))
    settled = worker.settled()
    worker.shutdown()
    (refusal,) = settled.loaded.values()
    assert isinstance(refusal, Refusal)
    assert refusal.reason is RefusalReason.INTERNAL_ERROR
    assert settled.saved == {"s": "RuntimeError: CUDA error"}
