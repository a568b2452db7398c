"""As service.store.fleet: revisions, aliases and engines as they are now."""

from collections.abc import Collection
from dataclasses import replace

from service.domain.artifact import BootId
from service.domain.errors import EngineRetired, NotFound, RevisionMismatch
from service.domain.events import OnUpgrade
from service.domain.plan import Engine, EngineRole, EngineState
from service.domain.revision import Descriptor, RevisionDigest
from service.domain.rollout import ACTIVE
from service.store.fleet import Alias, Serving
from tests.simulation.tables import AliasRow, EngineRow, Session


def register_revision(conn: Session, descriptor: Descriptor, *, label: str | None) -> RevisionDigest:
    if descriptor.digest not in conn.tables.descriptors:
        conn.set(conn.tables.descriptors, descriptor.digest, descriptor)
    return descriptor.digest


def find_descriptor(conn: Session, digest: RevisionDigest) -> Descriptor | None:
    return conn.tables.descriptors.get(digest)


def find_alias(conn: Session, alias: str) -> Alias | None:
    row = conn.tables.aliases.get(alias)
    return None if row is None else Alias(name=alias, revision=row.revision, on_upgrade=row.on_upgrade)


def set_alias(conn: Session, alias: str, revision: RevisionDigest, on_upgrade: OnUpgrade | None) -> None:
    if revision not in conn.tables.descriptors:
        raise NotFound("revision", revision, "revision")
    conn.set(conn.tables.aliases, alias, AliasRow(revision=revision, on_upgrade=on_upgrade))


def register_engine(
    conn: Session,
    *,
    boot: BootId,
    revision: RevisionDigest,
    address: str,
    role: EngineRole,
    lease_s: float,
    by: str | None = None,
) -> None:
    known = conn.tables.engines.get(boot)
    if known is not None and known.revision != revision:
        raise RevisionMismatch(wanted=known.revision, measured=revision)
    if known is not None and known.state is EngineState.GONE:
        raise EngineRetired(f"Engine {boot} was retired; start its process anew to serve again.")
    draining = known is not None and known.state is EngineState.DRAINING
    row = EngineRow(
        boot=boot,
        revision=revision,
        address=address,
        role=role,
        state=EngineState.DRAINING if draining else EngineState.READY,
        lease_end_s=conn.now_s + lease_s,
    )
    conn.set(conn.tables.engines, boot, row)


def heartbeat(conn: Session, *, boot: BootId, lease_s: float, requests: int | None = None) -> bool:
    row = conn.tables.engines.get(boot)
    if row is None or row.state is EngineState.GONE:
        return False
    conn.set(conn.tables.engines, boot, replace(row, lease_end_s=conn.now_s + lease_s, requests=requests))
    return True


def set_engine_state(conn: Session, *, boot: BootId, state: EngineState) -> bool:
    row = conn.tables.engines.get(boot)
    if row is None:
        return False
    conn.set(conn.tables.engines, boot, replace(row, state=state))
    return True


def serving(conn: Session) -> Serving:
    tables = conn.tables
    return frozenset(
        [
            *((row.boot, row.state.value) for row in tables.engines.values() if _alive(conn, row)),
            *((alias, row.revision) for alias, row in tables.aliases.items()),
            *(
                (one.rollout.id, str(one.version))
                for one in tables.rollouts.values()
                if one.rollout.state in ACTIVE
            ),
        ]
    )


def live_engines(conn: Session, of: Collection[RevisionDigest | None] | None = None) -> list[Engine]:
    return [
        Engine(
            boot=row.boot,
            revision=row.revision,
            address=row.address,
            role=row.role,
            state=row.state,
            load=conn.tables.loads.get(row.boot, 0),
            requests=row.requests,
        )
        for row in conn.tables.engines.values()
        if _alive(conn, row) and (of is None or row.revision in of)
    ]


def _alive(conn: Session, row: EngineRow) -> bool:
    return row.state is not EngineState.GONE and row.lease_end_s > conn.now_s
