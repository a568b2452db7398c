"""A terminal, or a pipe, whose characters are not all that is said."""

import io
import sys


def spare_characters(errors: str = "backslashreplace") -> None:
    """What standard output cannot show (`✓` in ISO-8859-1) ends no command: it is replaced, by its number or as `errors` says."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors in {"strict", "surrogateescape"}:
        out.reconfigure(errors=errors)
