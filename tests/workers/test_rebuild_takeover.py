"""A worker is killed in the middle of a long rebuild on real vLLM; another goes on, on another engine, where it was."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, text

from service.domain.evidence import Evidence
from service.domain.plan import EngineRole
from service.domain.revision import Descriptor
from service.settings import Settings
from service.store import fleet
from tests.engines.checkpoints import VOCABULARY
from tests.engines.real import RealEngine
from tests.workers.waiting import ACME, LONG_S, Waiting, make_warming
from workers.pool_process import PoolProcess
from workers.rebuild_runner import run_rebuild

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

CHUNK = 256
HISTORY = tuple(random.Random(7).randrange(10, VOCABULARY) for _ in range(4_000))  # noqa: S311 no secret
PATIENCE_S = 60.0
TURN = [50, 60, 70, 80]


def serve(store: Engine, engine: RealEngine) -> Descriptor:
    """It alone."""
    descriptor = Descriptor.from_json(engine.identity["descriptor"])
    with store.begin() as conn:
        conn.execute(text("DELETE FROM engines"))
        fleet.register_revision(conn, descriptor, label=None)
        fleet.register_engine(
            conn,
            boot=engine.boot,
            revision=descriptor.digest,
            address=engine.url,
            role=EngineRole.BOTH,
            lease_s=LONG_S,
        )
    return descriptor


@contextmanager
def killed_after_some_chunks(database: str, warming: Waiting) -> Iterator[int]:
    """Gives how many tokens were published by then."""
    command = [sys.executable, "-m", "tests.workers.rebuild_process", database, warming.rebuild, str(CHUNK)]
    worker = subprocess.Popen(command)
    deadline = time.monotonic() + PATIENCE_S
    while warming.row().tokens_done < 2 * CHUNK:
        assert worker.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    worker.kill()
    worker.wait()
    row = warming.row()
    assert (row.state, row.owner is not None) == ("running", True)
    with warming.database.begin() as conn:
        conn.execute(text("UPDATE rebuilds SET lease_expires_at = clock_timestamp() - interval '1 s'"))
    yield row.tokens_done


def evidence_of(engine: RealEngine, warming: Waiting, fence: int) -> list[Evidence]:
    """Of each of its prefills under that fence."""
    found: list[Evidence] = []
    number = 1
    while True:
        attempt = f"{warming.rebuild}.{fence}" + (f".{number}" if number > 1 else "")
        evidence = engine.evidence(attempt)
        if evidence is None:
            return found
        found.append(evidence)
        number += 1


def computed(evidence: Evidence) -> int:
    return evidence.prompt_tokens - evidence.local_tokens - (evidence.loaded.tokens if evidence.loaded else 0)


def test_the_next_worker_prefills_only_what_was_not_published_and_the_answer_is_a_cold_ones(
    database: str, store: Engine, v12_engine: RealEngine, second_v12_engine: RealEngine
) -> None:
    descriptor = serve(store, v12_engine)
    assert (
        serve(store, v12_engine).digest
        == Descriptor.from_json(second_v12_engine.identity["descriptor"]).digest
    )
    warming = make_warming(store, HISTORY, descriptor.digest)
    with killed_after_some_chunks(database, warming) as done:
        assert 2 * CHUNK <= done < len(HISTORY) - CHUNK
        serve(store, second_v12_engine)
        process = PoolProcess.open(Settings(database_url=SecretStr(database), rebuild_chunk_tokens=CHUNK))
        run_rebuild(process, warming.rebuild)
        process.close()
    row = warming.row()
    assert (row.state, row.fence, row.engine_boot) == ("done", 2, second_v12_engine.boot)
    first, *others = evidence_of(second_v12_engine, warming, 2)
    assert first.loaded is not None
    assert (first.loaded.tokens, first.loaded.producer) == (done, v12_engine.boot)
    assert sum(map(computed, [first, *others])) == len(HISTORY) - done
    prompt = [*HISTORY, *TURN]
    answer = second_v12_engine.generate(prompt, tenant=ACME, offer=row.artifact, cache_salt="none of before")
    assert answer.known.loaded is not None
    assert answer.known.loaded.tokens == row.tokens_done == len(HISTORY) // 32 * 32
    assert answer.tokens == second_v12_engine.cold(prompt).tokens
