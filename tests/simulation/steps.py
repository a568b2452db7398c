"""The steps that there are, read from the product's code: a new one that no run crashes at shows as missing."""

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType

from service.domain import rollout, turn
from service.engine import protocol
from tests.simulation.faults import Moment, Step, step

ROOTS = (
    "service.api.acceptance",
    "service.api.turn_runner",
    "workers.rebuild_runner",
    "workers.rollouts",
    "workers.sweeper",
    "workers.turn_sweep",
    "workers.turn_work",
)
"""What runs turns, rebuilds and rollouts; what they import of `SEARCHED` runs with them."""
SEARCHED = ("service.api.", "workers.rebuild", "workers.turn")
WHO_ASKS = frozenset({"service.api.wiring"})
"""Keys and tenants: nothing of a turn has begun yet."""
MESSAGES = ("broker.ring", "broker.acknowledge")


def all_steps() -> frozenset[Step]:
    names = transactions() | appended() | requests() | set(MESSAGES)
    return frozenset(step(name, moment) for name in names for moment in Moment)


def transactions() -> frozenset[str]:
    """Each function of a flow or of the store that one of the loops names: its transactions, and what they are made of."""
    return frozenset(name for module in _loops() for name in _named_in(module))


def appended() -> frozenset[str]:
    """Each event by which a turn or a rollout moves."""
    return frozenset(name for _, name in (*turn.TRANSITIONS, *rollout.TRANSITIONS))


def requests() -> frozenset[str]:
    """Each kind of request that an engine is sent."""
    paths = (value for name, value in vars(protocol).items() if name.endswith("_PATH"))
    return frozenset(f"engine.{path.strip('/').rpartition('/')[2]}" for path in paths)


def _loops() -> list[ModuleType]:
    found = {name: importlib.import_module(name) for name in ROOTS}
    waiting = list(found.values())
    while waiting:
        for name in _imported(waiting.pop()):
            if name.startswith(SEARCHED) and name not in WHO_ASKS and name not in found:
                found[name] = sys.modules[name]
                waiting.append(found[name])
    return list(found.values())


def _imported(module: ModuleType) -> set[str]:
    tree = ast.parse(inspect.getsource(module))
    return {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}


def _named_in(module: ModuleType) -> Iterator[str]:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        found: object = None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = getattr(vars(module).get(node.value.id), node.attr, None)
        elif isinstance(node, ast.Name):
            found = vars(module).get(node.id)
        if isinstance(found, FunctionType) and _is_transaction(found):
            yield f"{found.__module__.removeprefix('service.').removeprefix('store.')}.{found.__name__}"


def _is_transaction(function: FunctionType) -> bool:
    """By the house's rule: it takes the connection first."""
    parts = function.__module__.split(".")
    of_the_service = parts[0] == "service" and parts[1] != "api" and not function.__name__.startswith("_")
    return of_the_service and next(iter(inspect.signature(function).parameters), "") == "conn"
