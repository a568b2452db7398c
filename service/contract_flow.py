"""Compatibility contracts approved and revoked, one function for each transaction."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import Connection

from service.domain.contract import Contract, ContractId, approve
from service.domain.errors import NotFound
from service.domain.events import FLEET
from service.domain.fleet_events import ContractApproved, ContractRevoked
from service.domain.revision import Descriptor, RevisionDigest
from service.store import contracts, event_store, fleet


def approve_contract(
    conn: Connection,
    *,
    reader: RevisionDigest,
    producer: RevisionDigest,
    waived: Collection[str],
    reason: str,
    by: str,
    ends_at: datetime,
    now: datetime,
) -> Contract:
    """Raises:
    NotFound: a revision that nobody registered: what differs can then not be known.
    InvalidInput: terms that no contract may have, naming the field.
    """
    contract = approve(
        reader=_descriptor(conn, reader, "reader"),
        producer=_descriptor(conn, producer, "producer"),
        waived=waived,
        reason=reason,
        by=by,
        now_ms=_milliseconds(now),
        ends_ms=_milliseconds(ends_at),
    )
    approved = ContractApproved(contract=contract.id, terms=contract)
    event_store.append(
        conn, tenant=FLEET, stream=_stream(contract.id), expected_version=0, events=[approved], now=now
    )
    contracts.record(conn, contract)
    return contract


def revoke_contract(conn: Connection, contract: ContractId, *, by: str, now: datetime) -> None:
    """From here on nothing is offered under it. Raises: NotFound: unknown, or revoked before."""
    if not contracts.revoke(conn, contract, now):
        raise NotFound("contract in force", contract)
    revoked = ContractRevoked(contract=contract, by=by)
    event_store.append(
        conn, tenant=FLEET, stream=_stream(contract), expected_version=1, events=[revoked], now=now
    )


def _descriptor(conn: Connection, revision: RevisionDigest, param: str) -> Descriptor:
    found = fleet.find_descriptor(conn, revision)
    if found is None:
        raise NotFound("revision", revision, param)
    return found


def _stream(contract: ContractId) -> str:
    return f"contract/{contract}"


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
