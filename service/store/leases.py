"""Leases by the database's clock, the only one that all processes share."""

from datetime import datetime

from sqlalchemy import BindParameter, Column, ColumnElement, Float, bindparam, func

CLOCK: ColumnElement[datetime] = func.clock_timestamp()
"""Moves within a transaction, unlike now()."""


def lease_end(lease_s: float | BindParameter[float | None]) -> ColumnElement[datetime]:
    return CLOCK + func.make_interval(0, 0, 0, 0, 0, 0, lease_s)


def seconds(name: str) -> BindParameter[float | None]:
    """Of a lease, in a statement that is built once; where it is None, the lease has no end."""
    return bindparam(name, type_=Float())


def expired(lease: Column[datetime]) -> ColumnElement[bool]:
    return lease <= CLOCK
