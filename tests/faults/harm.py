"""What is done to a victim, once its fault has come to its place."""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, assert_never
from uuid import uuid4

import psutil
import psycopg
from celery.exceptions import CeleryError
from kombu.exceptions import KombuError
from psycopg import sql
from sqlalchemy import select

from service.domain.errors import Unavailable
from service.domain.plan import RebuildQueue
from service.queue import Doorbell
from service.store.tables import rebuilds
from stack.valkey import EmbeddedValkey
from tests.chaos.wire import Session
from tests.faults.engine_process import NEW, OLD, EngineProcess, KvFolder
from tests.faults.plan import Deed, Fault, Victim
from tests.faults.road import Way
from tests.workers.brokers import client_of

if TYPE_CHECKING:
    from stack.postgres import EmbeddedPostgres
    from tests.faults.rig import Fleet

DEATH_S = 20.0
RINGS = 5
USES_SLOWED = 3
"""By so many uses, the time is over that a store is slow for."""
WAYS = {Deed.MUTE: Way.THERE, Deed.DEAFEN: Way.BACK}
STALLED = {"synchronous_standby_names": "nobody"}
"""A COMMIT is flushed, and then waits for a standby that there is not, with its locks, as it waits for a disk."""
DRAGGED = {"commit_delay": "100000", "commit_siblings": "0"}
"""Microseconds before each flush."""


def strike(fleet: "Fleet", fault: Fault, engine: EngineProcess | None, session: Session | None) -> None:
    """`engine`: that stands still at the place; `session`: whose message it was."""
    met = engine or fleet.engine_of(fault)
    match fault.deed:
        case Deed.KILL:
            _kill(fleet, fault.victim, met, session)
        case Deed.STOP:
            _stop(fleet, fault, met)
        case Deed.EXCHANGE:
            _exchange(fleet, met)
        case Deed.CUT:
            return  # which the trap does to every connection it springs in
        case Deed.MUTE | Deed.DEAFEN | Deed.LOSE:
            _break_road(fleet, fault, met)
        case Deed.FORGET | Deed.DOUBLE | Deed.RESTORE:
            _confuse(fleet, fault.deed)
        case Deed.SLOW | Deed.STALL | Deed.DRAG | Deed.WIPE:
            _hinder(fleet, fault)
        case _:
            assert_never(fault.deed)


def _confuse(fleet: "Fleet", deed: Deed) -> None:
    """The broker."""
    match deed:
        case Deed.FORGET:
            _forget(fleet)
        case Deed.DOUBLE:
            _ring_for_old(fleet, fleet.broker, RINGS)
        case _:
            _restore(fleet)


def _hinder(fleet: "Fleet", fault: Fault) -> None:
    """The database or the store."""
    match fault.deed:
        case Deed.SLOW if fault.victim is Victim.STORE:
            folder = KvFolder(fleet.kv)
            folder.slow_down(fault.for_s / USES_SLOWED)
            _later(fleet, fault.for_s, folder.speed_up)
        case Deed.SLOW:
            _meanwhile(fleet, fleet.base.proxy.silence(), fault.for_s)
        case Deed.WIPE:
            KvFolder(fleet.kv).wipe()
        case _:
            settings = STALLED if fault.deed is Deed.STALL else DRAGGED
            set_server(fleet.base.server, settings)
            _later(fleet, fault.for_s, lambda: reset_server(fleet.base.server, settings))


def _kill(fleet: "Fleet", victim: Victim, engine: EngineProcess, session: Session | None) -> None:
    match victim:
        case Victim.API:
            fleet.base.kill_api()
        case Victim.WORKER:
            fleet.worker.kill_main()
        case Victim.CHILD:
            for pid in fleet.worker.children():
                _signal(pid, signal.SIGKILL)
        case Victim.ENGINE:
            engine.kill()
        case Victim.POSTGRES:
            fleet.base.kill_postgres()
        case Victim.BACKEND:
            if session is not None:
                fleet.base.kill_backend(session.backend_pid)
        case _:
            assert victim is Victim.BROKER
            psutil.Process(fleet.broker.child.pid).kill()


def _stop(fleet: "Fleet", fault: Fault, engine: EngineProcess) -> None:
    if fault.victim is Victim.ENGINE:
        engine.stop()
        _later(fleet, fault.for_s, engine.go_on)
        return
    pids = _pids(fleet, fault.victim)
    for pid in pids:
        _signal(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in pids:
            _signal(pid, signal.SIGCONT)

    _later(fleet, fault.for_s, go_on)


def _pids(fleet: "Fleet", victim: Victim) -> list[int]:
    match victim:
        case Victim.API:
            assert fleet.base.api is not None
            return [fleet.base.api.pid]
        case Victim.WORKER:
            return [fleet.worker.pid, *fleet.worker.children()]
        case Victim.CHILD:
            return fleet.worker.children()
        case Victim.BROKER:
            return [fleet.broker.child.pid]
        case _:
            assert victim is Victim.POSTGRES
            parent = psutil.Process(fleet.base.server.child.pid)
            return [parent.pid, *(child.pid for child in parent.children(recursive=True))]


def _exchange(fleet: "Fleet", engine: EngineProcess) -> None:
    """In a thread of its own: the engine's own must not wait for the one that comes after it."""
    engine.kill()
    other = OLD if engine.weights == NEW else NEW

    def come() -> None:
        fleet.take_in(EngineProcess(other, fleet.kv, lambda *_: None, engine.post, engine.port))

    _later(fleet, 0, come)


def _break_road(fleet: "Fleet", fault: Fault, engine: EngineProcess) -> None:
    road = fleet.roads[engine.post if fault.victim is Victim.ENGINE_ROAD else fault.victim]
    broken = road.lost() if fault.deed is Deed.LOSE else road.held(WAYS[fault.deed])
    _meanwhile(fleet, broken, fault.for_s)


def _ring_for_old(fleet: "Fleet", broker: EmbeddedValkey, times: int) -> None:
    """Of those that there are, also where they are done."""
    with fleet.base.database.connect() as conn:
        names = conn.execute(select(rebuilds.c.rebuild_id, rebuilds.c.queue).limit(RINGS)).all()
    bell = Doorbell(broker.url())
    try:
        for name, queue in [*names] * times:
            bell.ring(name, RebuildQueue(queue))
    except Unavailable:
        pass  # it is being killed by another thread's fault
    finally:
        bell.close()


def _forget(fleet: "Fleet") -> None:
    try:
        with client_of(fleet.broker.url()) as client:
            client.flushall()
    except (KombuError, CeleryError, OSError):
        return


def make_old_copy(fleet: "Fleet") -> Path:
    """Of the broker's data: the oldest rebuilds wait in it, which have been done since."""
    with EmbeddedValkey(fleet.folder / f"copied-{uuid4().hex}") as copied:
        _ring_for_old(fleet, copied, 1)
    return copied.directory / "data"


def _restore(fleet: "Fleet") -> None:
    psutil.Process(fleet.broker.child.pid).kill()
    assert fleet.broker.child.ended(within_s=DEATH_S)
    assert fleet.copied is not None
    put_in_place(fleet.copied, fleet.broker.directory / "data")


def put_in_place(copied: Path, data: Path) -> None:
    """As its owner's."""
    owner = data.stat()
    for old in data.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    shutil.copytree(copied, data, dirs_exist_ok=True)
    for path in data.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid)


def set_server(server: "EmbeddedPostgres", settings: dict[str, str]) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for name, value in settings.items():
            conn.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        conn.execute("SELECT pg_reload_conf()")


def reset_server(server: "EmbeddedPostgres", settings: dict[str, str]) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        for name in settings:
            conn.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
        conn.execute("SELECT pg_reload_conf()")


def _meanwhile(fleet: "Fleet", broken: AbstractContextManager[None], for_s: float) -> None:
    """Broken when this returns."""
    exits = ExitStack()
    exits.enter_context(broken)
    _later(fleet, for_s, exits.close)


def _later(fleet: "Fleet", after_s: float, work: Callable[[], object]) -> None:
    timer = threading.Timer(after_s, work)
    timer.start()
    fleet.pending.append(timer)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended by itself
