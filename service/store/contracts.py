"""Compatibility contracts as they stand now; their approval and end are events, and each consumer judges for itself."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, Select, extract, select, update
from sqlalchemy.dialects.postgresql import insert

from service.domain.contract import Contract, ContractId
from service.store.leases import CLOCK
from service.store.tables import contracts


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredContract:
    terms: Contract
    revoked_at: datetime | None


def record(conn: Connection, contract: Contract) -> None:
    """Recording the same terms twice changes nothing."""
    row = {
        "contract_id": contract.id,
        "reader": contract.reader,
        "producer": contract.producer,
        "terms": contract.to_json(),
        "ends_ms": contract.ends_ms,
    }
    conn.execute(insert(contracts).values(row).on_conflict_do_nothing())


def revoke(conn: Connection, contract: ContractId, now: datetime) -> bool:
    """False where there is none, or none any more."""
    live = (contracts.c.contract_id == contract) & contracts.c.revoked_at.is_(None)
    return conn.execute(update(contracts).where(live).values(revoked_at=now)).rowcount == 1


def find(conn: Connection, contract: ContractId) -> StoredContract | None:
    return next(iter(_read(conn, select(contracts).where(contracts.c.contract_id == contract))), None)


def list_all(conn: Connection) -> list[StoredContract]:
    return _read(conn, select(contracts).order_by(contracts.c.ends_ms, contracts.c.contract_id))


# Built once: what every turn comes by.
IN_FORCE = (
    select(contracts.c.terms, contracts.c.revoked_at)
    .where(contracts.c.revoked_at.is_(None), contracts.c.ends_ms > extract("epoch", CLOCK) * 1000)
    .order_by(contracts.c.contract_id)
)


def in_force(conn: Connection) -> list[Contract]:
    """Neither revoked nor, by the database's clock, at its end."""
    return [stored.terms for stored in _read(conn, IN_FORCE)]


def _read(conn: Connection, query: Select[*tuple[Any, ...]]) -> list[StoredContract]:
    return [_stored(row) for row in conn.execute(query)]


def _stored(row: Row[*tuple[Any, ...]]) -> StoredContract:
    return StoredContract(terms=Contract.from_json(row.terms), revoked_at=row.revoked_at)
