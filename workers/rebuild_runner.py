"""Runs one rebuild: claims its row, has an engine of the wanted revision prefill the history in chunks, records what came of each."""

import logging
import os
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime

from celery.exceptions import SoftTimeLimitExceeded

from service import rebuild_run_flow
from service.domain.errors import EngineFailed, EverturnError, FenceLost, RebuildFailed, RevisionMismatch
from service.domain.evidence import Evidence, Refusal
from service.domain.plan import Engine
from service.domain.rebuild import next_boundary
from service.rebuild_run_flow import Begun
from service.store.rebuilds import Claim
from workers.pool_process import PoolProcess
from workers.rebuild_lease import lease_renewed
from workers.rebuild_pace import rested
from workers.rebuild_prefill import Prefill, prefill_chunk, refusal_of

log = logging.getLogger(__name__)

REST_SHARE = 0.25
"""Of what a task may take, at most, that is rested after a chunk of a warm-up with a pace."""

LEASE_S = 3.0
"""After a worker's death its rebuild waits this long, and for the next sweep: people wait for it."""
MOST_CLAIMS = 5
"""A rebuild that ends its worker every time must not go round for ever."""
MOST_TRIES = 4
"""Of each chunk."""
HAND_OVER = 0.5
"""Of the time limit: then somebody else goes on with what nobody waits for."""


def run_rebuild(process: PoolProcess, rebuild: str) -> None:
    """Returns at once if the rebuild is another's or has ended; else its row ends with a result or a reason, or waits with what was done."""
    begun = _begin(process, rebuild)
    if begun is None:
        return
    try:
        with lease_renewed(process.database, begun.claim, LEASE_S):
            _run(process, begun)
    except FenceLost as lost:
        log.warning("rebuild %s, fence %s: %s", rebuild, begun.claim.fence, lost)


def _begin(process: PoolProcess, rebuild: str) -> Begun | None:
    """None where there is nothing to do, or it has been given up."""
    owner = f"{socket.gethostname()}:{os.getpid()}"
    try:
        with process.database.begin() as conn:
            begun = rebuild_run_flow.begin_rebuild(
                conn, rebuild=rebuild, owner=owner, lease_s=LEASE_S, most_claims=MOST_CLAIMS
            )
    except Exception as error:
        # With what could not be read its claim was undone.
        reason = str(error) if isinstance(error, EverturnError) else _unexpected(error)
        log.warning("rebuild %s could not be begun: %s", rebuild, reason)
        with process.database.begin() as conn:
            rebuild_run_flow.give_up(conn, rebuild=rebuild, owner=owner, lease_s=LEASE_S, reason=reason)
        if isinstance(error, EverturnError):
            return None
        raise
    if begun is None:
        log.info("rebuild %s is not free: nothing to do", rebuild)
    return begun


def _run(process: PoolProcess, begun: Begun) -> None:
    try:
        _Rebuilding(process, begun).run()
    except FenceLost:
        raise
    except EverturnError as error:
        _fail(process, begun.claim, str(error))
    except SoftTimeLimitExceeded:
        _fail(process, begun.claim, f"it took longer than {process.settings.rebuild_timeout_s:.0f} s")
    except Exception as error:
        _fail(process, begun.claim, _unexpected(error))
        raise


def _unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {error}"


def _fail(process: PoolProcess, claim: Claim, reason: str) -> None:
    log.warning("rebuild %s, fence %s failed: %s", claim.rebuild, claim.fence, reason)
    with process.database.begin() as conn:
        rebuild_run_flow.fail_rebuild(conn, claim=claim, reason=reason)


class _Rebuilding:
    """One claim's tries: an engine that fails is left for another, an offer that cannot be loaded is left out."""

    def __init__(self, process: PoolProcess, begun: Begun) -> None:
        self._process = process
        self._claim = begun.claim
        self._began = time.monotonic()
        self._prompt = begun.prompt
        self._engine = begun.engine
        self._at_hand = begun.at_hand
        self._pace = begun.pace
        self._block: int | None = None
        self._offer = begun.claim.partial or begun.claim.offer
        self._prefills = 0
        self._refused: tuple[Engine, Refusal] | None = None
        self._failed: list[tuple[Engine, str]] = []

    def run(self) -> None:
        engine, wanted = self._engine, True
        while wanted:
            began, done, end = time.monotonic(), self._done(), self._end()
            engine, evidence = self._prefilled(engine, end)
            wanted = self._record(engine, evidence, end) and self._rest(began, end - done)

    def _done(self) -> int:
        return max(self._claim.tokens_done, self._at_hand)

    def _end(self) -> int:
        done, total = self._done(), len(self._prompt)
        settings = self._process.settings
        chunk = settings.rebuild_chunk_tokens
        if self._pace is not None:
            chunk = min(chunk, int(self._pace * settings.rebuild_timeout_s * REST_SHARE))
        if total - done <= chunk:
            # Whatever an engine's block is.
            return total
        if self._block is None:
            with self._process.database.begin() as conn:
                self._block = rebuild_run_flow.block_tokens(conn, self._claim.revision)
        return next_boundary(done=done, total=total, chunk=chunk, block=self._block)

    def _load_prompt(self) -> None:
        with self._process.database.begin() as conn:
            self._prompt = rebuild_run_flow.rebuild_prompt(conn, self._claim)

    def _prefilled(self, engine: Engine, end: int) -> tuple[Engine, Evidence]:
        for _ in range(MOST_TRIES):
            wanted = self._wanted(engine, end)
            log.info(
                "rebuild %s: to token %s of %s on %s", wanted.attempt, end, len(self._prompt), engine.boot
            )
            try:
                return engine, prefill_chunk(self._process, wanted)
            except (EngineFailed, RevisionMismatch) as error:
                engine = self._after_failure(wanted, error)
        raise RebuildFailed(f"{MOST_TRIES} tries failed: {self._reasons()}")

    def _wanted(self, engine: Engine, end: int) -> Prefill:
        self._prefills += 1
        attempt = f"{self._claim.rebuild}.{self._claim.fence}"
        return Prefill(
            attempt=attempt if self._prefills == 1 else f"{attempt}.{self._prefills}",
            tenant=self._claim.tenant,
            revision=self._claim.revision,
            engine=engine,
            tokens=self._prompt[:end],
            offer=self._offer,
            whole=end == len(self._prompt),
            until=self._began + self._process.settings.rebuild_timeout_s,
        )

    def _after_failure(self, wanted: Prefill, error: EverturnError) -> Engine:
        """Which engine to try next."""
        log.warning("rebuild %s on %s: %s", wanted.attempt, wanted.engine.boot, error)
        refusal = refusal_of(self._process, wanted)
        if refusal is not None and self._offer is not None:
            self._refused = (wanted.engine, refusal)
            self._offer = None
            return wanted.engine
        self._failed.append((wanted.engine, str(error)))
        return self._pick()

    def _pick(self) -> Engine:
        with self._process.database.begin() as conn:
            engine = rebuild_run_flow.pick_rebuild_engine(
                conn,
                self._claim.revision,
                rebuild=self._claim.rebuild,
                avoid={failed.boot for failed, _ in self._failed},
            )
        if engine is None:
            raise RebuildFailed(
                f"no other ready engine for prefill serves {self._claim.revision}; {self._reasons()}"
            )
        return engine

    def _record(self, engine: Engine, evidence: Evidence, end: int) -> bool:
        """Whether there is more to do."""
        if self._refused is not None and self._refused[0].boot == evidence.boot:
            evidence = replace(evidence, refusal=self._refused[1])
        claim, now = self._claim, datetime.now(UTC)
        try:
            with self._process.database.begin() as conn:
                if end == len(self._prompt):
                    moved = rebuild_run_flow.record_rebuild(
                        conn, claim=claim, evidence=evidence, engine=engine, now=now
                    )
                else:
                    moved = rebuild_run_flow.record_chunk(
                        conn,
                        claim=claim,
                        evidence=evidence,
                        engine=engine,
                        now=now,
                        hand_over=self._is_late(),
                    )
        except FenceLost:
            self._note_unclaimed(evidence, now)
            raise
        if moved is None:
            log.info("rebuild %s, fence %s: %s", claim.rebuild, claim.fence, self._came_to(end))
            return False
        self._go_on(moved)
        return True

    def _rest(self, began: float, tokens: int) -> bool:
        """As long as so many tokens may take at its pace. Whether there is still something to do."""
        if self._pace is None:
            return True
        held = rested(self._process, self._claim, began + tokens / self._pace)
        if held is None:
            log.info("rebuild %s, fence %s: gives way", self._claim.rebuild, self._claim.fence)
            return False
        self._take(held)
        return True

    def _go_on(self, moved: Claim) -> None:
        if moved.tokens_done <= self._claim.tokens_done and moved.tokens_total == self._claim.tokens_total:
            raise RebuildFailed(f"no more than {moved.tokens_done} tokens of it were published")
        self._offer, self._refused = moved.partial, None
        self._take(moved)

    def _take(self, claim: Claim) -> None:
        grown = claim.tokens_total != self._claim.tokens_total
        self._claim = claim
        if grown:
            self._load_prompt()

    def _came_to(self, end: int) -> str:
        return "done" if end == len(self._prompt) else f"left to others at token {end}"

    def _is_late(self) -> bool:
        return time.monotonic() - self._began > HAND_OVER * self._process.settings.rebuild_timeout_s

    def _note_unclaimed(self, evidence: Evidence, now: datetime) -> None:
        if evidence.published is not None:
            with self._process.database.begin() as conn:
                rebuild_run_flow.note_unclaimed(conn, self._claim, evidence.published, now)

    def _reasons(self) -> str:
        return "; ".join(why for _, why in self._failed) or "the offered KV could not be loaded"
