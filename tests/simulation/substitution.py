"""Puts the simulated store, clock and ids in the place of the real ones, wherever the product's modules name them."""

import datetime as dt
import importlib
import inspect
import logging
import marshal
import pkgutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import FunctionType, ModuleType
from typing import Any

from sqlalchemy import Connection

from service.domain import canonical
from service.domain.revision import Descriptor, RevisionDigest
from service.engine import client
from service.store import new_ids
from tests.simulation import clock
from tests.simulation import store as simulated_store
from tests.simulation.steps import ROOTS, is_a_loop, is_request, name_of, placed
from tests.simulation.tables import Session
from tests.simulation.wire import asking

RUN_HERE = ("service.api.", "workers.")
"""Whose clocks, threads and ids are simulated; service.store keeps its own, which it does not use here."""
ACTORS = (*ROOTS, "workers.kv_connector.scheduler")


LOOKS = (
    ("service.api.fleet_watch", "LOOK_EVERY_S"),
    ("service.api.follower", "LOOK_EVERY_S"),
    ("service.api.rebuild_wait", "LONGEST_POLL_S"),
)
LOOK_EVERY_S = 1.0
"""Who waits for another process and can only look does so less often here: most of what happened were looks that found nothing."""

_digests: dict[bytes, RevisionDigest] = {}
_seen: dict[int, tuple[Descriptor, RevisionDigest]] = {}
"""By the identity of descriptors that are kept here, so that no other has theirs."""
MANY_SEEN = 10_000


def _digest(descriptor: Descriptor) -> RevisionDigest:
    """As the real one, once for each descriptor: it is asked for thousands of times a second here."""
    known = _seen.get(id(descriptor))
    if known is None:
        document = descriptor.to_json()
        key = marshal.dumps(document)
        if key not in _digests:
            _digests[key] = RevisionDigest("rev_" + canonical.digest(document))
        if len(_seen) > MANY_SEEN:
            _seen.clear()
        known = _seen[id(descriptor)] = descriptor, _digests[key]
    return known[1]


@contextmanager
def simulated() -> Iterator[None]:
    """Not of one run but of all: what is put there finds the run that it belongs to by its loop and its session."""
    for name in ACTORS:
        importlib.import_module(name)
    undo: list[tuple[ModuleType, str, object]] = []
    replaced = dict(_replacements())
    for module in _product():
        for name, value in list(vars(module).items()):
            put = _in_place_of(module, value, replaced)
            if put is not None:
                undo.append((module, name, value))
                setattr(module, name, put)
    for name, constant in LOOKS:
        module = sys.modules[name]
        undo.append((module, constant, getattr(module, constant)))
        setattr(module, constant, LOOK_EVERY_S)
    digest = Descriptor.digest
    Descriptor.digest = property(_digest)  # type: ignore[method-assign, assignment]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)
        Descriptor.digest = digest  # type: ignore[method-assign]
        for module, name, value in undo:
            setattr(module, name, value)


def store_functions() -> Iterator[tuple[str, FunctionType, FunctionType]]:
    """Of each that is simulated: its name, and the real one and the simulated one."""
    for found in pkgutil.iter_modules(simulated_store.__path__):
        theirs = importlib.import_module(f"service.store.{found.name}")
        ours = importlib.import_module(f"{simulated_store.__name__}.{found.name}")
        for name, function in _functions(ours):
            yield f"{found.name}.{name}", getattr(theirs, name), function


def flow_functions() -> Iterator[tuple[str, FunctionType]]:
    """Of all modules that take part: those that are a transaction, or a part of one."""
    for module in _product():
        if module.__name__.count(".") == 1 and module.__name__.startswith("service."):
            for name, function in _functions(module):
                if next(iter(inspect.signature(function).parameters), "") == "conn":
                    yield f"{module.__name__.removeprefix('service.')}.{name}", function


def _replacements() -> Iterator[tuple[int, Callable[..., Any]]]:
    for name, theirs, ours in store_functions():
        yield id(theirs), _noted(name, ours, theirs)
    for name, function in flow_functions():
        yield id(function), _noted(name, function, function)
    for _, function in _functions(client):
        if is_request(function):
            yield id(function), _asked(function)
    yield id(new_ids.new_id), partial(clock.stored_id, new_ids.new_id)


def _in_place_of(module: ModuleType, value: object, replaced: dict[int, Callable[..., Any]]) -> object:
    if isinstance(value, FunctionType):
        return replaced.get(id(value))
    if not module.__name__.startswith(RUN_HERE):
        return None
    if value is time.monotonic:
        return clock.monotonic
    if value is time:
        return clock.Time
    if value is dt.datetime and not module.__name__.startswith("service.api."):
        return clock.Datetime
    return clock.Threads if value is threading else None


def _noted(name: str, function: Callable[..., Any], real: FunctionType) -> Callable[..., Any]:
    """So that a transaction can be told by what it did; one of a service that other tests have running is left as it is."""

    @wraps(real)
    def noted(conn: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(conn, Connection):
            return real(conn, *args, **kwargs)
        if isinstance(conn, Session):
            conn.calls.append(name)
            if is_a_loop(caller := _caller()):
                conn.calls.append(placed(real, caller))
        return function(conn, *args, **kwargs)

    return noted


def _asked(function: FunctionType) -> Callable[..., Any]:
    """So that a request can be told by who sends it."""

    @wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if is_a_loop(caller := _caller()):
            asking.set((name_of(function), placed(function, caller)))
        return function(*args, **kwargs)

    return asked


def _caller() -> str:
    """Of the wrapper that asks: the name of a module."""
    return str(sys._getframe(2).f_globals["__name__"])


def _product() -> list[ModuleType]:
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(("service.", "workers.", "tests.simulation."))
        and not name.startswith(f"{simulated_store.__name__}.")
        and name != __name__
    ]


def _functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    for name, value in sorted(vars(module).items()):
        if (
            isinstance(value, FunctionType)
            and value.__module__ == module.__name__
            and not name.startswith("_")
        ):
            yield name, value
