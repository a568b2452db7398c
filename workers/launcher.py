"""`python -m workers.launcher`: starts one vLLM engine, registers what it measured of itself, and drains it at the end.

Exit status: 0 stopped as asked, 1 the engine failed, 2 something given is wrong, 3 it is not the expected revision, or does not answer
as engines of its revision do.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import TypeVar
from uuid import uuid4

import httpx

from service.domain.artifact import BootId
from service.domain.canary import compared_tokens
from service.domain.errors import (
    CanaryDiffers,
    Conflict,
    EngineFailed,
    EverturnError,
    Forbidden,
    InvalidInput,
    RevisionMismatch,
    Unauthenticated,
    Unavailable,
)
from service.domain.revision import differing_fields
from workers import canary
from workers.adapter_canary import AdapterCanaries, Ask
from workers.checkpoint_check import require_whole
from workers.child import Child, Program, Watched
from workers.engine_options import EngineOptions
from workers.engine_probe import EngineProbe, Health, Identity
from workers.fleet_client import Canary, FleetClient, Registration
from workers.kv_connector.weights import weights_digest
from workers.membership import Membership, Served
from workers.named_memory import NamedMemory
from workers.vllm_command import PROGRAM, built_for_cpus, vllm_command, with_private_adapters
from workers.zygote_engine import ZygoteEngine

T = TypeVar("T")

log = logging.getLogger(__name__)

POLL_S = 0.1
QUIET_S = 2.0
REMIND_S = 10.0
IDENTITY_WAIT_S = 60.0
CANARY_WAIT_S = 300.0
ADAPTER_CANARY_WAIT_S = 5.0
"""Meanwhile there is no heartbeat; an engine that is so busy is asked again."""
IDLE_BEFORE_STOP_S = 1.0
"""A turn may have been pinned just before the drain, and its request may still be on its way."""


class Stopped(Exception):
    """The launcher was asked to end before the engine served."""


class StopSignal:
    """Counts SIGTERM and SIGINT: the first drains, the second hurries."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._came)

    def _came(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


class Launcher:
    def __init__(self, options: EngineOptions, http: httpx.Client, stop: StopSignal, *, weights: str) -> None:
        """`weights` is their digest as they stand before vLLM loads them."""
        self._options = options
        self._stop = stop
        self._http = http
        self._probe = EngineProbe(http=http, address=options.local_address)
        self._fleet = FleetClient(http=http, api=options.api, key_file=options.key_file)
        self._boot = BootId(f"boot_{uuid4().hex}")
        self._process = _start(options, self._boot, weights)
        self._memory = NamedMemory(self._process.pid)

    def run(self) -> None:
        """Returns when stopped as asked; whatever happens, the engine has ended then.

        Raises:
            EngineFailed: it ended, broke or was not ready in time.
            RevisionMismatch: it is not what was expected.
        """
        try:
            self._wait(self._probe.require_up, "loading the model", self._options.start_timeout_s)
            identity = self._measured()
            self._require_expected(identity)
            self._memory.look()
            registration = self._registration(identity, self._canary(identity))
            membership = Membership(
                self._fleet,
                registration,
                served=self._adapters(identity),
                running=self._probe.running,
                canaries=AdapterCanaries(self._ask_adapter(identity)),
            )
            try:
                self._serve(membership)
                self._drain(membership)
            finally:
                # Before it leaves: a turn that is planned meanwhile finds a draining engine, not none at all.
                self._process.stop()
                membership.leave()
        finally:
            self._process.stop()
            self._memory.drop()

    def _serve(self, membership: Membership) -> None:
        log.info("%s serves at %s", self._options.name, self._options.address)
        next_look_at = 0.0
        health = Health.GOOD
        while not self._stop.count:
            self._check_alive("the engine ended")
            now = time.monotonic()
            if now >= next_look_at:
                health = self._look(health)
                next_look_at = now + 1.0
            if health is Health.GOOD:
                membership.keep(now)
            self._process.ended(within_s=POLL_S)

    def _check_alive(self, what: str) -> None:
        if self._process.ended():
            raise EngineFailed(f"{what} ({self._process.end_of()}): {self._process.last_words()}")

    def _look(self, before: Health) -> Health:
        """A broken engine ends, and one that lost its revision; a silent one gets no heartbeat, and leaves with its lease."""
        health = self._probe.health()
        if health is Health.BROKEN:
            raise EngineFailed(f"the engine broke: {self._process.last_words()}")
        if health is Health.GOOD and (why := self._probe.unmeasured()):
            raise EngineFailed(f"the engine is no longer what it is registered as: {why}")
        if health is not before:
            log.warning("the engine's health is %s", health)
        return health

    def _drain(self, membership: Membership) -> None:
        log.info("draining %s; a second signal stops it at once", self._options.name)
        membership.drain()
        began = busy_at = time.monotonic()
        while (now := time.monotonic()) < began + self._options.drain_timeout_s and self._stop.count == 1:
            self._check_alive("the engine ended while it drained")
            membership.keep(now)
            if self._probe.running() != 0:
                busy_at = now
            elif now >= busy_at + IDLE_BEFORE_STOP_S:
                break
            self._process.ended(within_s=POLL_S)
        else:
            log.warning("requests were still running on %s when it was stopped", self._options.name)

    def _measured(self) -> Identity:
        limit_s = min(IDENTITY_WAIT_S, self._options.start_timeout_s)
        identity = self._wait(self._probe.identity, "measuring the revision", limit_s)
        if identity.boot != self._boot:
            raise EngineFailed(f"another engine answers at {self._options.local_address}: {identity.boot}")
        return identity

    def _require_expected(self, identity: Identity) -> None:
        """Raises: RevisionMismatch, with the fields that differ where the API can tell."""
        wanted, measured = self._options.expect, identity.descriptor
        if wanted is None or measured.digest == wanted:
            return
        try:
            differing = differing_fields(measured, self._fleet.descriptor(wanted))
        except EverturnError as error:
            log.warning("the expected revision cannot be looked up: %s", error)
            differing = ()
        raise RevisionMismatch(wanted, measured.digest, differing)

    def _canary(self, identity: Identity) -> Canary | None:
        compared = compared_tokens(self._options.canary, identity.descriptor.kv.compute_dtype)
        if compared is None:
            log.warning("%s answers no canary: --canary is off", self._options.name)
            return None
        limit_s = min(CANARY_WAIT_S, self._options.start_timeout_s)
        generation = self._wait(
            lambda: canary.ask(self._http, self._options.local_address), "answering the canary", limit_s
        )
        return Canary(generation=generation, compared=compared)

    def _registration(self, identity: Identity, answered: Canary | None) -> Registration:
        return Registration(
            boot=identity.boot,
            address=self._options.address,
            role=self._options.role,
            descriptor=identity.descriptor,
            expected_revision=self._options.expect,
            canary=answered,
        )

    def _adapters(self, identity: Identity) -> Served:
        """Whether it takes any does not change while it runs."""
        if identity.adapters is None:
            return lambda: None
        return lambda: self._probe.identity().adapters

    def _ask_adapter(self, identity: Identity) -> Ask | None:
        """How the canary is asked under an adapter, between two heartbeats; None where it is not."""
        compared = compared_tokens(self._options.canary, identity.descriptor.kv.compute_dtype)
        if compared is None:
            return None

        def asked(model: str) -> Canary:
            generation = canary.ask(
                self._http, self._options.local_address, model=model, timeout_s=ADAPTER_CANARY_WAIT_S
            )
            return Canary(generation=generation, compared=compared)

        return asked

    def _wait(self, look: Callable[[], T], what: str, limit_s: float) -> T:
        """Looks until it is not Unavailable; says what it waits for while that takes longer than two seconds."""
        began = time.monotonic()
        remind_at = began + QUIET_S
        while True:
            try:
                return look()
            except EngineFailed:
                raise
            except Unavailable as error:
                why = error
            self._check_alive(f"the engine ended while {what}")
            now = time.monotonic()
            if self._stop.count:
                raise Stopped
            if now > began + limit_s:
                raise EngineFailed(f"{what} took longer than {limit_s:.0f} s: {why}")
            if now >= remind_at:
                self._memory.look()
                log.info("%s: %s ... %.0f s", self._options.name, what, now - began)
                remind_at = now + REMIND_S
            self._process.ended(within_s=POLL_S)


def _start(options: EngineOptions, boot: BootId, weights: str) -> Watched:
    """Must be called from the main thread: Linux ends a child with the thread that started it."""
    command = vllm_command(options, boot, os.environ, weights=weights, cpu=built_for_cpus())
    plain = Program(
        name=options.name,
        argv=[sys.executable, "-m", PROGRAM, *command.arguments],
        env=command.env,
        log=options.log,
        stop=((signal.SIGTERM, options.shutdown_timeout_s + 10.0),),
    )
    if options.zygote is None:
        return Child.start(plain)
    try:
        return ZygoteEngine.start(options.zygote, replace(plain, argv=command.arguments))
    except OSError as error:
        raise InvalidInput(
            f"--zygote '{options.zygote}' started no engine ({error}): start workers.engine_zygote there, or leave it out.",
            "--zygote",
        ) from error


def launch(argv: Sequence[str]) -> int:
    name = "launcher"
    try:
        options = EngineOptions.parse(argv)
        name = options.name
        options.check()
        options = with_private_adapters(options)
        stop = StopSignal()
        require_whole(options.model)
        log.info("%s: hashing %s", name, options.model)
        # The engine finds the hashes in the cache, and holds its own against them.
        weights = weights_digest(options.model, options.run_dir, paranoid=options.paranoid)
        with httpx.Client(trust_env=False) as http:
            Launcher(options, http, stop, weights=weights).run()
    except Stopped:
        log.info("%s: stopped before it served", name)
    except (RevisionMismatch, CanaryDiffers) as error:
        return _fail(name, error, 3)
    except EngineFailed as error:
        return _fail(name, error, 1)
    except (InvalidInput, Unauthenticated, Forbidden, Conflict) as error:
        return _fail(name, error, 2)
    return 0


def _fail(name: str, error: Exception, status: int) -> int:
    log.error("%s: %s", name, error)
    return status


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    sys.exit(launch(sys.argv[1:]))
