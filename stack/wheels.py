"""Finds the folder of an installed wheel without running its code."""

import importlib.util
from pathlib import Path

from stack.errors import StackError

ELSEWHERE = "run the service with servers of your own, as docker-compose.yml does"


def wheel_folder(package: str, *, part: str) -> Path:
    """Raises StackError, with both ways out, when the wheel is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            f"{part} is not installed (no package {package}): install everturn[embedded], or {ELSEWHERE}"
        )
    return Path(spec.submodule_search_locations[0])
