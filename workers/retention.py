"""Erases what tenants' policies say is too old, one conversation in each transaction; what must stay is told, not touched."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from service import retention_flow
from service.domain.errors import EverturnError
from service.domain.events import ConversationId, TenantId
from service.retention_flow import Outcome
from service.store import retention
from service.store.retention import Overdue, Retention

log = logging.getLogger(__name__)

PAGE = 100
AGAIN_S = 60.0
"""After a round that the database has cut off."""


def judged_at(database: Engine) -> datetime:
    """Now, by whichever clock is behind: what one clock that is ahead would erase is gone for good."""
    with database.begin() as conn:
        return retention.earlier_of(conn, datetime.now(UTC))


def outcomes(
    database: Engine, now: datetime, *, dry_run: bool, tenant: TenantId | None = None
) -> Iterator[Outcome]:
    """Of every conversation that is older than its tenant's policy allows; in a dry run, what would become of it.

    Raises:
        SQLAlchemyError: the database cannot be used now. What was erased by then is.
    """
    with database.begin() as conn:
        rules = retention.list_retention(conn, tenant)
    for rule in rules:
        for found in _overdue(database, rule, now):
            yield _one(database, rule, found, now, dry_run=dry_run)


def _overdue(database: Engine, rule: Retention, now: datetime) -> Iterator[Overdue]:
    after: ConversationId | None = None
    while True:
        with database.begin() as conn:
            page = retention_flow.next_overdue(conn, rule, now=now, after=after, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].conversation


def _one(database: Engine, rule: Retention, found: Overdue, now: datetime, *, dry_run: bool) -> Outcome:
    """One that cannot be erased now keeps no other from it."""
    work = retention_flow.judge if dry_run else retention_flow.erase_overdue
    try:
        with database.begin() as conn:
            return work(conn, rule, found, now)
    except (EverturnError, DBAPIError) as error:
        return Outcome(rule=rule, overdue=found, kept=f"it could not be erased now: {error}")


@dataclass(slots=True)
class Rounds:
    """A round of all policies every so often, a few conversations at a time, so that it never keeps a sweep waiting."""

    every_s: float
    next_s: float = 0.0
    """Monotonic; the first round begins at once."""
    round: Iterator[Outcome] | None = None

    def step(self, database: Engine, most: int) -> int:
        """Returns how many conversations were looked at. Raises: SQLAlchemyError; another round begins soon."""
        if self.round is None:
            if time.monotonic() < self.next_s:
                return 0
            self.next_s = time.monotonic() + self.every_s
            self.round = _round(database)
        for number in range(most):
            try:
                outcome = next(self.round, None)
            except Exception:
                self.round = None
                self.next_s = time.monotonic() + min(self.every_s, AGAIN_S)
                raise
            if outcome is None:
                self.round = None
                return number
            _tell(outcome)
        return most


def _round(database: Engine) -> Iterator[Outcome]:
    yield from outcomes(database, judged_at(database), dry_run=False)


def _tell(outcome: Outcome) -> None:
    name = f"{outcome.overdue.conversation} of tenant {outcome.rule.tenant}"
    if outcome.kept is not None:
        log.info("%s is past its %d days, and stays: %s", name, outcome.rule.after_days, outcome.kept)
    else:
        forks = f", with {len(outcome.forks)} forks" if outcome.forks else ""
        log.info("erased %s after %d days%s", name, outcome.rule.after_days, forks)
