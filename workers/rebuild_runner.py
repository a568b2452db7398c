"""Runs one rebuild: claims its row, has an engine of the wanted revision prefill the history, records what came of it."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

from celery.exceptions import SoftTimeLimitExceeded
from sqlalchemy.exc import SQLAlchemyError

from service import rebuild_run_flow
from service.domain.artifact import ArtifactId, BootId
from service.domain.errors import EngineFailed, EverturnError, FenceLost, RebuildFailed, RevisionMismatch
from service.domain.events import Sampling
from service.domain.evidence import Evidence, KvRequest, Refusal
from service.domain.plan import Engine
from service.engine.client import prefill, prefill_evidence
from service.engine.protocol import GenerateSpec, cache_salt
from service.store import rebuilds
from service.store.rebuilds import Claim
from workers.pool_process import PoolProcess

log = logging.getLogger(__name__)

LEASE_S = 5.0
"""After a worker's death its rebuild waits this long, and for the next sweep."""
BEATS_PER_LEASE = 3
MOST_CLAIMS = 5
"""A rebuild that ends its worker every time must not go round for ever."""
MOST_TRIES = 4
EVIDENCE_WAIT_S = 10.0
ONE_TOKEN = Sampling(max_output_tokens=1, temperature=0.0, top_p=1.0)
"""The least that vLLM generates; it is thrown away."""


def run_rebuild(process: PoolProcess, rebuild: str) -> None:
    """Returns at once if the rebuild is another's or has ended; else its row ends with a result or a reason."""
    owner = f"{socket.gethostname()}:{os.getpid()}"
    with process.database.begin() as conn:
        claim = rebuilds.claim(conn, rebuild=rebuild, owner=owner, lease_s=LEASE_S)
    if claim is None:
        log.info("rebuild %s is not free: nothing to do", rebuild)
        return
    try:
        with _lease_renewed(process, claim):
            _run(process, claim)
    except FenceLost as lost:
        log.warning("rebuild %s, fence %s: %s", rebuild, claim.fence, lost)


def _run(process: PoolProcess, claim: Claim) -> None:
    try:
        _Rebuilding(process, claim).run()
    except FenceLost:
        raise
    except EverturnError as error:
        _fail(process, claim, str(error))
    except SoftTimeLimitExceeded:
        _fail(process, claim, f"it took longer than {process.settings.rebuild_timeout_s:.0f} s")
    except Exception as error:
        _fail(process, claim, f"unexpected {type(error).__name__}: {error}")
        raise


def _fail(process: PoolProcess, claim: Claim, reason: str) -> None:
    log.warning("rebuild %s, fence %s failed: %s", claim.rebuild, claim.fence, reason)
    with process.database.begin() as conn:
        rebuild_run_flow.fail_rebuild(conn, claim=claim, reason=reason)


class _Rebuilding:
    """One claim's tries: an engine that fails is left for another, an offer that cannot be loaded is left out."""

    def __init__(self, process: PoolProcess, claim: Claim) -> None:
        self._process = process
        self._claim = claim
        self._deadline = time.monotonic() + process.settings.rebuild_timeout_s
        self._prompt: tuple[int, ...] = ()
        self._offer = claim.offer
        self._refused: tuple[BootId, Refusal] | None = None
        self._failed: dict[BootId, str] = {}

    def run(self) -> None:
        if self._claim.fence > MOST_CLAIMS:
            raise RebuildFailed(f"given up: {MOST_CLAIMS} workers claimed it, and none of them came back")
        with self._process.database.begin() as conn:
            self._prompt = rebuild_run_flow.rebuild_prompt(conn, self._claim)
        engine = self._pick()
        for number in range(1, MOST_TRIES + 1):
            attempt = f"{self._claim.rebuild}.{self._claim.fence}" + (f".{number}" if number > 1 else "")
            try:
                evidence = self._prefill(engine, attempt)
            except (EngineFailed, RevisionMismatch) as error:
                engine = self._after_failure(engine, attempt, error)
            else:
                self._record(engine, evidence)
                return
        raise RebuildFailed(f"{MOST_TRIES} tries failed: {self._reasons()}")

    def _prefill(self, engine: Engine, attempt: str) -> Evidence:
        log.info("rebuild %s: %s tokens on %s", attempt, len(self._prompt), engine.boot)
        kv = KvRequest(
            attempt=attempt,
            tenant=self._claim.tenant,
            offer=self._offer,
            publish=ArtifactId(f"kv_{uuid4().hex}"),
            lease_s=self._process.settings.kv_lease_s,
        )
        spec = GenerateSpec(
            prompt=self._prompt,
            sampling=ONE_TOKEN,
            kv=kv,
            revision=self._claim.revision,
            boot=engine.boot,
            cache_salt=cache_salt(self._claim.revision, self._claim.tenant),
            model=engine.model,
        )
        prefill(self._process.http, engine.address, spec)
        return self._published(engine, attempt)

    def _published(self, engine: Engine, attempt: str) -> Evidence:
        """An answer of the engine is not yet a publication: its blocks are written after it."""
        while time.monotonic() < self._deadline:
            evidence = prefill_evidence(self._process.http, engine.address, attempt, EVIDENCE_WAIT_S)
            if evidence is None:
                raise EngineFailed(f"Engine {engine.boot} knows nothing of attempt {attempt}.")
            if evidence.published is not None or evidence.publish_failure is not None:
                return evidence
        raise RebuildFailed(f"engine {engine.boot} had not published in time")

    def _after_failure(self, engine: Engine, attempt: str, error: EverturnError) -> Engine:
        """Which engine to try next."""
        log.warning("rebuild %s on %s: %s", attempt, engine.boot, error)
        refusal = self._refusal_of(engine, attempt)
        if refusal is not None and self._offer is not None:
            self._refused = (engine.boot, refusal)
            self._offer = None
            return engine
        self._failed[engine.boot] = str(error)
        return self._pick()

    def _refusal_of(self, engine: Engine, attempt: str) -> Refusal | None:
        try:
            evidence = prefill_evidence(self._process.http, engine.address, attempt, 0)
        except EngineFailed as error:
            log.warning("rebuild %s: no evidence: %s", attempt, error)
            return None
        return None if evidence is None else evidence.refusal

    def _pick(self) -> Engine:
        with self._process.database.begin() as conn:
            engine = rebuild_run_flow.pick_rebuild_engine(conn, self._claim.revision, avoid=self._failed)
        if engine is None:
            raise RebuildFailed(
                f"no {'other ' if self._failed else ''}ready engine for prefill serves {self._claim.revision}"
                + (f"; {self._reasons()}" if self._failed else "")
            )
        return engine

    def _record(self, engine: Engine, evidence: Evidence) -> None:
        if self._refused is not None and self._refused[0] == evidence.boot:
            evidence = replace(evidence, refusal=self._refused[1])
        with self._process.database.begin() as conn:
            rebuild_run_flow.record_rebuild(
                conn, claim=self._claim, evidence=evidence, engine=engine, now=datetime.now(UTC)
            )
        log.info("rebuild %s, fence %s: done", self._claim.rebuild, self._claim.fence)

    def _reasons(self) -> str:
        return "; ".join(self._failed.values()) or "the offered KV could not be loaded"


@contextmanager
def _lease_renewed(process: PoolProcess, claim: Claim) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=_renew_until, args=(process, claim, over.wait), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _renew_until(process: PoolProcess, claim: Claim, over: Callable[[float], bool]) -> None:
    while not over(LEASE_S / BEATS_PER_LEASE):
        try:
            with process.database.begin() as conn:
                held = rebuilds.renew(conn, rebuild=claim.rebuild, fence=claim.fence, lease_s=LEASE_S)
        except SQLAlchemyError as error:
            log.warning("rebuild %s: the lease could not be renewed: %s", claim.rebuild, error)
            continue
        if not held:
            # The work cannot be interrupted from here; its result will find the fence gone.
            log.warning("rebuild %s: fence %s is lost", claim.rebuild, claim.fence)
            return
