"""One engine's place in the fleet: registered once it serves, renewed while it lives, whatever the API goes through."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from service.domain.adapter import Adapter, ServedAdapter
from service.domain.artifact import BootId
from service.domain.errors import Conflict, EverturnError, Forbidden, InvalidInput, Unauthenticated
from service.domain.revision import RevisionDigest
from workers.adapter_canary import AdapterCanaries
from workers.fleet_client import FleetClient, Registration

log = logging.getLogger(__name__)

RETRY_S = 1.0
BEATS_PER_LEASE = 3
REMIND_S = 30.0


Served = Callable[[], tuple[Adapter, ...] | None]
"""Asks the engine what it serves now beside its base; None for one that takes no adapters."""
Running = Callable[[], int | None]
"""Asks the engine how many requests it has not answered yet; None where it does not say."""


class Membership:
    """`keep` never blocks longer than a beat's few requests, and lets no trouble of the API end the engine."""

    def __init__(
        self,
        fleet: FleetClient,
        registration: Registration,
        *,
        served: Served,
        running: Running,
        canaries: AdapterCanaries,
    ) -> None:
        self._fleet = fleet
        self._served = served
        self._running = running
        self._canaries = canaries
        self._registration = registration
        self._registered = False
        self._was_registered = False
        self._draining = False
        self._unheard = False
        self._next_at = 0.0
        self._trouble = _Trouble()

    @property
    def boot(self) -> BootId:
        return self._registration.boot

    def keep(self, now: float) -> None:
        """Registers or renews when it is time to; `now` is monotonic seconds.

        Raises:
            Unauthenticated, Forbidden, InvalidInput, Conflict: the API refused the first registration.
        """
        if now < self._next_at or (self._draining and not self._registered):
            return
        self._next_at = now + RETRY_S
        try:
            wait_s = self._beat()
        except (Unauthenticated, Forbidden, InvalidInput, Conflict) as error:
            if not self._was_registered:
                raise
            self._trouble.report(error, now)
        except EverturnError as error:
            self._trouble.report(error, now)
        else:
            self._trouble.over()
            self._next_at = now + wait_s

    def drain(self) -> None:
        """From here on `keep` renews, so that running turns keep their engine, but never registers again."""
        self._draining = True
        self._tell("drain", self._fleet.drain)

    def leave(self) -> None:
        self._tell("leave", self._fleet.forget)

    def _beat(self) -> float:
        """Returns the seconds until the next one."""
        if self._registered:
            renewed = self._fleet.heartbeat(self.boot, self._running())
            if renewed is not None:
                more = self._tell_adapters(renewed.adapters)
                return 0.0 if more else renewed.lease_s / BEATS_PER_LEASE
            self._registered = False
            if self._draining:
                return RETRY_S
            log.warning("the API no longer knows %s: registering again", self.boot)
        lease_s = self._fleet.register(self._registration)
        log.info("registered as %s, revision %s", self.boot, self._registration.descriptor.digest)
        self._registered = self._was_registered = True
        # The next heartbeat says what the API knows of its adapters.
        return lease_s / BEATS_PER_LEASE if self._served() is None else 0.0

    def _tell_adapters(self, known: Mapping[str, RevisionDigest | None] | None) -> bool:
        """Where what the engine serves is not what the API takes it to serve, as after a load or an unload.

        Returns whether there are others, which have not answered the canary yet.
        """
        served = self._served()
        if served is None:
            return False
        if known is None:
            if not self._unheard:
                log.warning("the API knows of no adapters: upgrade it, or no turn goes to them")
            self._unheard = True
            return False
        told = self._canaries.ready(served)
        wanted = self._canaries.known(told)
        revisions = {a.model: a.revision if isinstance(a, ServedAdapter) else None for a in wanted}
        if revisions != dict(known):
            refused = self._fleet.serve_adapters(self.boot, told, self._canaries.answers(told))
            self._say(self._canaries.note(told, refused))
        return len(told) < len(served)

    def _say(self, adapters: Sequence[Adapter]) -> None:
        for adapter in adapters:
            if isinstance(adapter, ServedAdapter):
                log.info("adapter '%s' is served as revision %s", adapter.model, adapter.revision)
            else:
                log.warning("adapter '%s' gets no turns: %s", adapter.model, adapter.reason)

    def _tell(self, what: str, call: Callable[[BootId], None]) -> None:
        """Best effort: where the API cannot hear it, the lease ends by itself."""
        if not self._was_registered:
            return
        try:
            call(self.boot)
        except EverturnError as error:
            log.warning("could not tell the API to %s %s: %s", what, self.boot, error)


@dataclass(slots=True)
class _Trouble:
    """Says once that something is wrong, again every half minute, and when it is over."""

    next_at: float | None = None

    def report(self, error: EverturnError, now: float) -> None:
        if self.next_at is None or now >= self.next_at:
            log.warning("%s; trying again", error)
            self.next_at = now + REMIND_S

    def over(self) -> None:
        if self.next_at is not None:
            log.info("the API answers again")
            self.next_at = None
