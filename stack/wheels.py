"""Finds the folder of an installed wheel without running its code."""

import importlib.util
from pathlib import Path

from stack.errors import StackError


def wheel_folder(package: str, *, part: str, instead: str) -> Path:
    """Raises StackError, naming the setting to use instead, when the wheel is not installed."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            f"{part} is not installed (no package {package}): "
            f"install everturn[embedded], or set {instead} to a server of your own"
        )
    return Path(spec.submodule_search_locations[0])
