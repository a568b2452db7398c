"""Revisions, aliases, engines and keys: what moves the fleet, one function for each transaction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_address, ip_network
from re import fullmatch
from urllib.parse import urlsplit

from sqlalchemy import Connection

from service import shift_flow
from service.domain.adapter import Adapter, ServedAdapter, effective
from service.domain.artifact import BootId
from service.domain.errors import (
    Conflict,
    EnginePinned,
    Forbidden,
    InvalidInput,
    NotFound,
    RevisionMismatch,
)
from service.domain.events import FLEET, ConversationId, Event, OnUpgrade, TenantId
from service.domain.fleet_events import AdapterServed, AdapterWithdrawn, EngineRegistered
from service.domain.plan import EngineRole, EngineState
from service.domain.revision import Descriptor, RevisionDigest, differing_fields
from service.shift_flow import KeepPolicy, MovedAlias
from service.store import adapters, event_store, fleet, keys, rollout_facts, rollouts

ALIAS_FORM = r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEngine:
    boot: BootId
    address: str
    role: EngineRole
    descriptor: Descriptor
    """As the engine measured itself."""
    expected: RevisionDigest | None
    """What its operator takes it to be; None takes it for what it is."""
    by: str | None = None
    """The key that it is registered with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    tenant: str
    operator: str
    engine: str
    """Of scope `engine`: what an engine's machine needs, and opens nothing else. Empty: not made yet."""


def register_revision(conn: Connection, descriptor: Descriptor, *, label: str | None) -> RevisionDigest:
    return fleet.register_revision(conn, descriptor, label=label)


def move_alias(
    conn: Connection,
    *,
    alias: str,
    revision: RevisionDigest,
    on_upgrade: OnUpgrade | KeepPolicy | None,
    by: str,
    now: datetime,
    force: bool = False,
) -> MovedAlias:
    """Where neither revision nor policy changes, nothing is recorded. `force` aborts the rollout that the alias is in.

    Raises:
        InvalidInput: not a name for an alias.
        NotFound: no such revision is registered.
        VersionConflict: someone else moved it meanwhile.
        Conflict: it is in a rollout.
    """
    if not fullmatch(ALIAS_FORM, alias):
        raise InvalidInput(
            "An alias is 1 to 64 letters, digits, '.', '_', ':' or '-', and begins with a letter or digit.",
            "name",
        )
    if fleet.find_descriptor(conn, revision) is None:
        raise NotFound("revision", revision, "revision")
    _leave_rollout(conn, alias, revision, by=by, now=now, force=force)
    return shift_flow.point_alias(conn, alias, revision, on_upgrade=on_upgrade, by=by, now=now)


def _leave_rollout(
    conn: Connection, alias: str, revision: RevisionDigest, *, by: str, now: datetime, force: bool
) -> None:
    rollout = rollouts.find_active(conn, alias)
    known = fleet.find_alias(conn, alias)
    if rollout is None or (known is not None and known.revision == revision):
        return
    if not force:
        raise Conflict(
            f"Alias '{alias}' is in rollout {rollout}: wait for its end, roll it back or abort it, "
            "or move the alias with force=true, which aborts it."
        )
    shift_flow.abort(conn, rollout, by=by, reason=f"the alias was moved to {revision} by force", now=now)


def register_engine(
    conn: Connection, engine: NewEngine, *, allowed_hosts: frozenset[str], lease_s: float, now: datetime
) -> RevisionDigest:
    """Returns the revision that the engine's own measurement amounts to; again for a known boot renews it.

    Raises:
        InvalidInput: an address where no engine may be.
        RevisionMismatch: it is not what was expected of it, or its boot id belongs to another revision.
    """
    check_address(engine.address, allowed_hosts)
    revision = engine.descriptor.digest
    if engine.expected not in (None, revision):
        raise _mismatch(conn, engine, str(engine.expected))
    fleet.register_revision(conn, engine.descriptor, label=None)
    stream = f"engine/{engine.boot}"
    history = event_store.read(conn, tenant=FLEET, stream=stream)
    registered = [e for e in history if isinstance(e, EngineRegistered)]
    if registered and registered[-1].revision != revision:
        raise _mismatch(conn, engine, registered[-1].revision)
    event = EngineRegistered(
        boot=engine.boot, revision=revision, address=engine.address, role=engine.role.value
    )
    if event not in registered:
        event_store.append(
            conn, tenant=FLEET, stream=stream, expected_version=len(history), events=[event], now=now
        )
    fleet.register_engine(
        conn,
        boot=engine.boot,
        revision=revision,
        address=engine.address,
        role=engine.role,
        lease_s=lease_s,
        by=engine.by,
    )
    return revision


def serve_adapters(conn: Connection, boot: BootId, told: Sequence[Adapter], *, now: datetime) -> None:
    """All that the engine serves beside its base, in the place of what it told before.

    Raises:
        NotFound: no such engine is in the fleet.
        RevisionMismatch: a revision that is not the engine's base with that adapter in it, and with nothing else.
        VersionConflict: two told at once.
    """
    known = check_adapters(conn, boot, told)
    stream = f"adapters/{boot}"
    history = event_store.read(conn, tenant=FLEET, stream=stream)
    events = _moves(boot, history, known)
    if events:
        event_store.append(
            conn, tenant=FLEET, stream=stream, expected_version=len(history), events=events, now=now
        )
    adapters.replace_adapters(conn, boot, told)


def check_adapters(conn: Connection, boot: BootId, told: Sequence[Adapter]) -> list[ServedAdapter]:
    """Those with a revision, which is registered then. Raises: NotFound, RevisionMismatch."""
    base = fleet.find_base(conn, boot)
    if base is None:
        raise NotFound("engine", boot)
    known = [adapter for adapter in told if isinstance(adapter, ServedAdapter)]
    for adapter in known:
        descriptor = effective(base, adapter.adapter)
        if descriptor.digest != adapter.revision:
            raise _not_its_own(conn, descriptor, adapter.revision)
        fleet.register_revision(conn, descriptor, label=None)
    return known


def _moves(
    boot: BootId, history: Sequence[Event], known: Sequence[ServedAdapter]
) -> list[AdapterServed | AdapterWithdrawn]:
    """From what is on record to what is served now."""
    before: dict[str, RevisionDigest] = {}
    for event in history:
        if isinstance(event, AdapterServed):
            before[event.model] = event.revision
        elif isinstance(event, AdapterWithdrawn):
            del before[event.model]
    now = {adapter.model: adapter.revision for adapter in known}
    return [
        *(
            AdapterWithdrawn(boot=boot, model=model, revision=revision)
            for model, revision in before.items()
            if now.get(model) != revision
        ),
        *(
            AdapterServed(boot=boot, model=a.model, adapter=a.adapter, revision=a.revision)
            for a in known
            if before.get(a.model) != a.revision
        ),
    ]


def renew_engine(
    conn: Connection, boot: BootId, *, lease_s: float, requests: int | None = None
) -> adapters.Held:
    """Args: requests: that it has not answered yet, by its own count; None where it does not tell.

    Returns the adapters that it is known to serve.

    Raises:
        NotFound: the engine must register again.
    """
    if not fleet.heartbeat(conn, boot=boot, lease_s=lease_s, requests=requests):
        raise NotFound("engine", boot)
    return adapters.held_adapters(conn, boot)


def drain_engine(conn: Connection, boot: BootId, *, force: bool = False) -> tuple[ConversationId, ...]:
    """It gets no new attempts; those it has go on.

    Returns the conversations that are answered nowhere from here on, none of them without `force`.

    Raises:
        NotFound: no such engine.
        EnginePinned: there would be some.
    """
    return _withdraw(conn, boot, EngineState.DRAINING, force=force)


def retire_engine(conn: Connection, boot: BootId, *, force: bool = False) -> tuple[ConversationId, ...]:
    """As `drain_engine`; what still runs on it has to go elsewhere."""
    return _withdraw(conn, boot, EngineState.GONE, force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    engines: tuple[BootId, ...]
    conversations: tuple[ConversationId, ...]
    """That are answered nowhere from here on; none of them without force."""


def retire_revision(conn: Connection, revision: RevisionDigest, *, force: bool = False) -> Retired:
    """All its engines at once. One that registers as it afterwards serves again.

    Raises:
        NotFound: no such revision is registered.
        Conflict: an alias or a rollout needs it, or engines serve it as an adapter; also with `force`.
        EnginePinned: conversations may go on nowhere else.
    """
    if fleet.find_descriptor(conn, revision) is None:
        raise NotFound("revision", revision)
    needed = sorted(name for name, of in rollout_facts.needed(conn, but="").items() if revision in of)
    if needed:
        raise Conflict(
            f"Alias '{needed[0]}' points at {revision} or is in a rollout from or to it: move it, or end that, first."
        )
    serving = fleet.live_engines(conn, {revision})
    adapted = sorted(f"'{engine.model}' of {engine.boot}" for engine in serving if engine.model is not None)
    if adapted:
        raise Conflict(f"{revision} is served as adapter {', '.join(adapted)}: unload it there.")
    pinned = tuple(rollout_facts.strict_on(conn, revision))
    if pinned and not force:
        raise EnginePinned(revision, pinned)
    for engine in serving:
        fleet.set_engine_state(conn, boot=engine.boot, state=EngineState.GONE)
    return Retired(engines=tuple(engine.boot for engine in serving), conversations=pinned)


def _withdraw(
    conn: Connection, boot: BootId, state: EngineState, *, force: bool
) -> tuple[ConversationId, ...]:
    ready = [
        engine
        for engine in fleet.live_engines(conn)
        if engine.state is EngineState.READY and engine.role is not EngineRole.PREFILL
    ]
    elsewhere = {engine.revision for engine in ready if engine.boot != boot}
    lost = {engine.revision for engine in ready if engine.boot == boot} - elsewhere
    pinned = tuple(chat for revision in sorted(lost) for chat in rollout_facts.strict_on(conn, revision))
    if pinned and not force:
        raise EnginePinned(boot, pinned)
    if not fleet.set_engine_state(conn, boot=boot, state=state):
        raise NotFound("engine", boot)
    return pinned


def check_address(address: str, allowed_hosts: frozenset[str]) -> None:
    """An engine is sent whole conversations, so it may only be where the operator said engines are."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    # urlsplit drops what no address holds, such as a newline; what is stored is the whole text.
    clean = address.isascii() and address.isprintable() and " " not in address
    plain = clean and host and port and parts.scheme in {"http", "https"} and not parts.username
    if not plain or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidInput("'address' must be http(s)://host:port.", "address")
    if host is None or not _is_among(host, allowed_hosts):
        allowed = ", ".join(sorted(allowed_hosts))
        raise InvalidInput(
            f"'address' is at {host}; engines may be at: {allowed}. EVERTURN_ENGINE_HOSTS sets the list.",
            "address",
        )


def _is_among(host: str, allowed: frozenset[str]) -> bool:
    """By its name, or as an address within one of the networks. A name is never looked up: who answers for it may change."""
    if host in allowed:
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return any(address in ip_network(one) for one in allowed if "/" in one)


def check_own(conn: Connection, boot: BootId, key_id: str) -> None:
    """For a key that speaks for engines alone. Raises: Forbidden: the boot was registered with another one."""
    theirs = fleet.registered_by(conn, boot)
    if theirs is None or not keys.is_heir(conn, key_id, theirs):
        raise Forbidden(
            f"Engine {boot} was not registered with this key: use the one that it was, its successor, or an operator's."
        )


def bootstrap(
    conn: Connection,
    *,
    tenant: TenantId,
    kept: Secrets | None,
    new_secret: Callable[[], str],
    now: datetime,
) -> Secrets:
    """A tenant, its key, an operator's and one for engines. Those of an earlier call are kept while they are still good."""
    if kept is not None and _good(conn, tenant, kept):
        secrets = kept
    else:
        keys.create_tenant(conn, tenant)
        secrets = Secrets(tenant=new_secret(), operator=new_secret(), engine="")
        keys.create_key(conn, tenant=tenant, scope=keys.Scope.TENANT, secret=secrets.tenant, now=now)
        keys.create_key(conn, tenant=None, scope=keys.Scope.OPERATOR, secret=secrets.operator, now=now)
    engine = keys.authenticate(conn, secrets.engine)
    if engine is None or engine.scope is not keys.Scope.ENGINE:
        secrets = replace(secrets, engine=new_secret())
        keys.create_key(conn, tenant=None, scope=keys.Scope.ENGINE, secret=secrets.engine, now=now)
    return secrets


def _good(conn: Connection, tenant: TenantId, kept: Secrets) -> bool:
    ours, operator = keys.authenticate(conn, kept.tenant), keys.authenticate(conn, kept.operator)
    return (
        ours is not None
        and ours.tenant == tenant
        and operator is not None
        and operator.scope is keys.Scope.OPERATOR
    )


def _mismatch(conn: Connection, engine: NewEngine, wanted: str) -> RevisionMismatch:
    return _not_its_own(conn, engine.descriptor, RevisionDigest(wanted))


def _not_its_own(conn: Connection, measured: Descriptor, wanted: RevisionDigest) -> RevisionMismatch:
    theirs = fleet.find_descriptor(conn, wanted)
    differing = differing_fields(measured, theirs) if theirs is not None else ()
    return RevisionMismatch(wanted, measured.digest, differing)
