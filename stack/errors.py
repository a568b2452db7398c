"""The one error of the stack: a single line naming the part, the cause and the way out."""

import errno

FULL = {errno.ENOSPC, errno.EDQUOT}


class StackError(Exception):
    """Its text is printed as it is; there is nothing to add to it."""


def unusable(error: OSError, folder: object) -> StackError:
    """What the machine refused, told as an error of the data folder that it happened in."""
    way_out = "free some space" if error.errno in FULL else "make it usable, or choose another data directory"
    return StackError(f"cannot use {error.filename or folder}: {error.strerror or error}; {way_out}")
