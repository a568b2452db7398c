"""Where the API of the stack on this machine is."""

import json
from pathlib import Path

from stack.errors import StackError


def local_address(data: Path, option: str) -> str:
    """Args: option: of the command line, that names another. Raises: StackError: no stack runs here."""
    try:
        return str(json.loads((data / "run" / "ready.json").read_text())["url"])
    except (OSError, ValueError, KeyError) as error:
        raise StackError(
            f"no stack runs on this machine: start one with `make up`, or give {option}"
        ) from error
