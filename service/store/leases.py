"""Leases by the database's clock, the only one that all processes share."""

from datetime import datetime

from sqlalchemy import Column, ColumnElement, func

CLOCK: ColumnElement[datetime] = func.clock_timestamp()
"""Moves within a transaction, unlike now()."""


def lease_end(lease_s: float) -> ColumnElement[datetime]:
    return CLOCK + func.make_interval(0, 0, 0, 0, 0, 0, lease_s)


def expired(lease: Column[datetime]) -> ColumnElement[bool]:
    return lease <= CLOCK
