"""The steps that there are, read from the product's code: a new one that no run crashes at shows as missing."""

import ast
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType

from service.domain import rollout, turn
from service.engine import client, protocol
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
SPLIT = "service.api.prefill_split"
"""Where one engine prefills for another."""


def all_steps() -> frozenset[Step]:
    names = transactions() | appended() | requests() | set(MESSAGES)
    return frozenset(step(name, moment) for name in names for moment in Moment)


def split_steps() -> frozenset[Step]:
    """Those between the plan that names two engines and the second one's answer."""
    names = {placed(function, SPLIT) for function in _named_in(sys.modules[SPLIT])}
    return frozenset(step(name, moment) for name in names for moment in Moment)


def transactions() -> frozenset[str]:
    """Each function of a flow or of the store that one of the loops names: its transactions, and what they are made of."""
    return _named(_is_transaction)


def name_of(function: FunctionType) -> str:
    where = function.__module__.removeprefix("service.").removeprefix("store.").removeprefix("engine.")
    return f"{where}.{function.__name__}"


def placed(function: FunctionType, module: str) -> str:
    """What is done, and by which of the loops."""
    return f"{name_of(function)} of {module.removeprefix('service.')}"


def is_a_loop(module: str) -> bool:
    """Or may be one: of those that are searched."""
    return module.startswith(("service.api.", "workers."))


def appended() -> frozenset[str]:
    """Each event by which a turn or a rollout moves."""
    return frozenset(name for _, name in (*turn.TRANSITIONS, *rollout.TRANSITIONS))


def requests() -> frozenset[str]:
    """Each kind of request that an engine is sent, and each place in the loops where one is sent from."""
    paths = (value for name, value in vars(protocol).items() if name.endswith("_PATH"))
    return frozenset(f"engine.{path.strip('/').rpartition('/')[2]}" for path in paths) | _named(is_request)


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


def _named(wanted: Callable[[FunctionType], bool]) -> frozenset[str]:
    """What several of the loops do is a step of each."""
    by: dict[str, set[str]] = {}
    for module in _loops():
        for function in _named_in(module):
            if wanted(function):
                by.setdefault(name_of(function), set()).add(placed(function, module.__name__))
    return frozenset(one for name, places in by.items() for one in (places if len(places) > 1 else {name}))


def _named_in(module: ModuleType) -> Iterator[FunctionType]:
    """What is a step."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        found: object = None
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found = getattr(vars(module).get(node.value.id), node.attr, None)
        elif isinstance(node, ast.Name):
            found = vars(module).get(node.id)
        if isinstance(found, FunctionType) and (_is_transaction(found) or is_request(found)):
            yield found


def _is_transaction(function: FunctionType) -> bool:
    """By the house's rule: it takes the connection first."""
    parts = function.__module__.split(".")
    of_the_service = parts[0] == "service" and parts[1] != "api" and not function.__name__.startswith("_")
    return of_the_service and _first_parameter(function) == "conn"


def is_request(function: FunctionType) -> bool:
    """By the house's rule: it takes the connection to engines first."""
    return function.__module__ == client.__name__ and _first_parameter(function) == "http"


def _first_parameter(function: FunctionType) -> str:
    return next(iter(inspect.signature(function).parameters), "")
