"""Which constraint a statement broke: the database decides races, and says which one was lost."""

from psycopg import errors
from sqlalchemy.exc import IntegrityError


def broken_constraint(error: IntegrityError) -> str | None:
    cause = error.orig
    return cause.diag.constraint_name if isinstance(cause, errors.IntegrityError) else None
