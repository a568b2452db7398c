"""One engine's place in the fleet: registered once it serves, renewed while it lives, whatever the API goes through."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from service.domain.artifact import BootId
from service.domain.errors import Conflict, EverturnError, Forbidden, InvalidInput, Unauthenticated
from workers.fleet_client import FleetClient, Registration

log = logging.getLogger(__name__)

RETRY_S = 1.0
BEATS_PER_LEASE = 3
REMIND_S = 30.0


class Membership:
    """`keep` never blocks longer than one request, and lets no trouble of the API end the engine."""

    def __init__(self, fleet: FleetClient, registration: Registration) -> None:
        self._fleet = fleet
        self._registration = registration
        self._registered = False
        self._was_registered = False
        self._draining = False
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
            lease_s = self._beat()
        except (Unauthenticated, Forbidden, InvalidInput, Conflict) as error:
            if not self._was_registered:
                raise
            self._trouble.report(error, now)
        except EverturnError as error:
            self._trouble.report(error, now)
        else:
            self._trouble.over()
            self._next_at = now + lease_s / BEATS_PER_LEASE

    def drain(self) -> None:
        """From here on `keep` renews, so that running turns keep their engine, but never registers again."""
        self._draining = True
        self._tell("drain", self._fleet.drain)

    def leave(self) -> None:
        self._tell("leave", self._fleet.forget)

    def _beat(self) -> float:
        if self._registered:
            lease_s = self._fleet.heartbeat(self.boot)
            if lease_s is not None:
                return lease_s
            self._registered = False
            if self._draining:
                return RETRY_S
            log.warning("the API no longer knows %s: registering again", self.boot)
        lease_s = self._fleet.register(self._registration)
        log.info("registered as %s, revision %s", self.boot, self._registration.descriptor.digest)
        self._registered = self._was_registered = True
        return lease_s

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
