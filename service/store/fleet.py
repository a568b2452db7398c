"""Revisions, aliases and engines as they are now; their moves are events, which the flows append."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    null,
    select,
    table,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.exc import IntegrityError

from service.domain.artifact import BootId
from service.domain.errors import EngineRetired, NotFound, RevisionMismatch
from service.domain.events import OnUpgrade
from service.domain.plan import Engine, EngineRole, EngineState
from service.domain.revision import Descriptor, RevisionDigest
from service.store.constraints import broken_constraint
from service.store.hot_statement import HotStatement
from service.store.leases import expired, lease_end
from service.store.rollout_tables import ACTIVE_STATES, rollouts
from service.store.tables import (
    REVISION_OF_ALIAS,
    REVISION_OF_ENGINE,
    aliases,
    engine_adapters,
    engines,
    revisions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredRevision:
    revision: RevisionDigest
    label: str | None
    registered_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    name: str
    revision: RevisionDigest
    on_upgrade: OnUpgrade | None


LOAD = table("engine_load", column("engine", Text), column("attempts", BigInteger))
"""Counts over all tenants, which no tenant's transaction could make by itself."""


def register_revision(conn: Connection, descriptor: Descriptor, *, label: str | None) -> RevisionDigest:
    """A revision that is known already keeps its first label."""
    row = {"revision": descriptor.digest, "descriptor": descriptor.to_json(), "label": label}
    conn.execute(insert(revisions).values(row).on_conflict_do_nothing())
    return descriptor.digest


def find_descriptor(conn: Connection, digest: RevisionDigest) -> Descriptor | None:
    found = conn.execute(
        select(revisions.c.descriptor).where(revisions.c.revision == digest)
    ).scalar_one_or_none()
    return None if found is None else Descriptor.from_json(found)


def list_revisions(conn: Connection) -> list[RegisteredRevision]:
    query = select(revisions.c.revision, revisions.c.label, revisions.c.registered_at)
    return [
        RegisteredRevision(
            revision=RevisionDigest(row.revision), label=row.label, registered_at=row.registered_at
        )
        for row in conn.execute(query.order_by(revisions.c.registered_at, revisions.c.revision))
    ]


def find_alias(conn: Connection, alias: str) -> Alias | None:
    return next(iter(_aliases(ALIAS.all(conn, {"alias": alias}))), None)


def list_aliases(conn: Connection) -> list[Alias]:
    return _aliases(conn.execute(select(aliases).order_by(aliases.c.alias)))


def set_alias(conn: Connection, alias: str, revision: RevisionDigest, on_upgrade: OnUpgrade | None) -> None:
    """Raises: NotFound for a revision that nobody registered."""
    values = {"revision": revision, "on_upgrade": on_upgrade, "moved_at": func.clock_timestamp()}
    statement = insert(aliases).values(alias=alias, **values)
    try:
        conn.execute(statement.on_conflict_do_update(index_elements=[aliases.c.alias], set_=values))
    except IntegrityError as error:
        if broken_constraint(error) == REVISION_OF_ALIAS:
            raise NotFound("revision", revision, "revision") from error
        raise


def register_engine(
    conn: Connection,
    *,
    boot: BootId,
    revision: RevisionDigest,
    address: str,
    role: EngineRole,
    lease_s: float,
    by: str | None = None,
) -> None:
    """Of a boot that is known already, the lease is renewed; one that drains goes on draining. `by` is a key's id.

    Raises:
        NotFound: a revision that nobody registered.
        EngineRetired: the boot was retired, and stays so.
        RevisionMismatch: the boot is registered with another revision: a process never changes its own.
    """
    values = {"address": address, "role": role, "lease_expires_at": lease_end(lease_s)}
    state = case((engines.c.state == EngineState.DRAINING, EngineState.DRAINING), else_=EngineState.READY)
    statement = (
        insert(engines)
        .values(boot=boot, revision=revision, state=EngineState.READY, registered_by=by, **values)
        .on_conflict_do_update(
            index_elements=[engines.c.boot],
            set_={**values, "state": state},
            where=(engines.c.revision == revision) & (engines.c.state != EngineState.GONE),
        )
        .returning(engines.c.boot)
    )
    try:
        # Of an INSERT, SQLAlchemy keeps no rowcount.
        registered = conn.execute(statement).one_or_none() is not None
    except IntegrityError as error:
        if broken_constraint(error) == REVISION_OF_ENGINE:
            raise NotFound("revision", revision, "revision") from error
        raise
    if not registered:
        known = conn.execute(select(engines.c.revision).where(engines.c.boot == boot)).scalar_one()
        if known == revision:
            raise EngineRetired(f"Engine {boot} was retired; start its process anew to serve again.")
        raise RevisionMismatch(wanted=known, measured=revision)


def registered_by(conn: Connection, boot: BootId) -> str | None:
    """The key that it was registered with first; None where that is not known, or there is no such boot."""
    found: str | None = conn.execute(
        select(engines.c.registered_by).where(engines.c.boot == boot)
    ).scalar_one_or_none()
    return found


def find_base(conn: Connection, boot: BootId) -> Descriptor | None:
    """What the engine registered as; None for a boot that is unknown or gone."""
    query = (
        select(revisions.c.descriptor)
        .join(engines, engines.c.revision == revisions.c.revision)
        .where(engines.c.boot == boot, engines.c.state != EngineState.GONE)
    )
    found = conn.execute(query).scalar_one_or_none()
    return None if found is None else Descriptor.from_json(found)


def heartbeat(conn: Connection, *, boot: BootId, lease_s: float, requests: int | None = None) -> bool:
    """Args: requests: that it has not answered yet, by its own count. False for a boot that is unknown or gone: it must register."""
    query = (
        update(engines)
        .where(engines.c.boot == boot, engines.c.state != EngineState.GONE)
        .values(lease_expires_at=lease_end(lease_s), requests=requests)
    )
    return conn.execute(query).rowcount == 1


def set_engine_state(conn: Connection, *, boot: BootId, state: EngineState) -> bool:
    """False for an unknown boot."""
    return conn.execute(update(engines).where(engines.c.boot == boot).values(state=state)).rowcount == 1


Serving = frozenset[tuple[str, ...]]


def serving(conn: Connection) -> Serving:
    """What a plan for a waiting turn depends on: differs whenever an engine, its adapters, an alias or its rollout has changed."""
    found = conn.execute(select(engines.c.boot, engines.c.state).where(_alive()))
    adapters = conn.execute(
        select(engines.c.boot, cast(func.max(engine_adapters.c.told_at), Text))
        .join(engine_adapters, engine_adapters.c.boot == engines.c.boot)
        .where(_alive())
        .group_by(engines.c.boot)
    )
    pointed = conn.execute(select(aliases.c.alias, aliases.c.revision))
    led = conn.execute(
        select(rollouts.c.rollout_id, cast(rollouts.c.version, Text)).where(
            rollouts.c.state.in_(ACTIVE_STATES)
        )
    )
    return frozenset(tuple(row) for row in (*found, *adapters, *pointed, *led))


def live_engines(conn: Connection, of: Collection[RevisionDigest | None] | None = None) -> list[Engine]:
    """Those whose lease runs, in whatever state, once for each revision that they serve: all, or only those given."""
    if of is None:
        return _engines(conn.execute(LIVE))
    return _engines(LIVE_OF.all(conn, {"revisions": sorted(filter(None, of))}))


def list_engines(conn: Connection) -> list[Engine]:
    """All that ever registered, as their bases; one whose lease has run out is gone, whatever it said last."""
    return _engines(conn.execute(_all_engines(adapters=False)))


def _aliases(rows: Iterable[Row[*tuple[Any, ...]]]) -> list[Alias]:
    return [
        Alias(
            name=row.alias,
            revision=RevisionDigest(row.revision),
            on_upgrade=None if row.on_upgrade is None else OnUpgrade(row.on_upgrade),
        )
        for row in rows
    ]


_BASES = select(engines.c.boot, engines.c.revision, null().cast(Text).label("model"))
_ADAPTED = select(engine_adapters.c.boot, engine_adapters.c.revision, engine_adapters.c.model).where(
    engine_adapters.c.revision.is_not(None)
)
_SERVED = union_all(_BASES, _ADAPTED).subquery("served")


def _alive() -> ColumnElement[bool]:
    return and_(~expired(engines.c.lease_expires_at), engines.c.state != EngineState.GONE)


def _all_engines(*, adapters: bool) -> Select[*tuple[object, ...]]:
    served = _SERVED if adapters else _BASES.subquery("served")
    state = case((expired(engines.c.lease_expires_at), EngineState.GONE), else_=engines.c.state)
    return (
        select(
            engines.c.boot,
            served.c.revision,
            served.c.model,
            engines.c.address,
            engines.c.role,
            state.label("state"),
            engines.c.requests,
            func.coalesce(LOAD.c.attempts, 0).label("load"),
        )
        .join_from(engines, served, served.c.boot == engines.c.boot)
        .join(LOAD, LOAD.c.engine == engines.c.boot, isouter=True)
        .order_by(engines.c.registered_at, engines.c.boot, served.c.model.nulls_first())
    )


# Built once: what every turn comes by.
ALIAS = HotStatement(
    select(aliases.c.alias, aliases.c.revision, aliases.c.on_upgrade).where(
        aliases.c.alias == bindparam("alias")
    )
)
LIVE = _all_engines(adapters=True).where(_alive())
LIVE_OF = HotStatement(LIVE.where(_SERVED.c.revision == any_(bindparam("revisions", type_=ARRAY(Text)))))


def _engines(rows: Iterable[Row[*tuple[Any, ...]]]) -> list[Engine]:
    return [
        Engine(
            boot=BootId(row.boot),
            revision=RevisionDigest(row.revision),
            model=row.model,
            address=row.address,
            role=EngineRole(row.role),
            state=EngineState(row.state),
            load=row.load,
            requests=row.requests,
        )
        for row in rows
    ]
