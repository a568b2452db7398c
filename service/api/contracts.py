"""`/admin/contracts`: which revision may read another's KV, and until when. What is answered is what an engine is given."""

from typing import Any

from fastapi import APIRouter
from pydantic import AwareDatetime, Field
from starlette.requests import Request

from service import contract_flow
from service.api.body import StrictBody, parse, read_object
from service.api.wiring import Operator, ServiceOf
from service.domain.contract import parse_contract_id
from service.domain.errors import NotFound
from service.domain.revision import parse_digest
from service.store import contracts
from service.store.contracts import StoredContract

router = APIRouter(prefix="/admin/contracts")


class ContractBody(StrictBody):
    reader: str
    producer: str
    waived: list[str] = Field(max_length=100)
    reason: str = Field(min_length=1, max_length=1000)
    approved_by: str | None = Field(default=None, min_length=1, max_length=200)
    ends_at: AwareDatetime = Field(strict=False)


@router.post("", status_code=201)
async def approve(request: Request, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    body = parse(ContractBody, await read_object(request, service.settings.max_body_bytes))
    reader, producer = parse_digest(body.reader, "reader"), parse_digest(body.producer, "producer")
    contract = await service.database.run(
        lambda conn: contract_flow.approve_contract(
            conn,
            reader=reader,
            producer=producer,
            waived=body.waived,
            reason=body.reason,
            by=body.approved_by or principal.key_id,
            ends_at=body.ends_at,
            now=service.clock(),
        )
    )
    return _object(StoredContract(terms=contract, revoked_at=None))


@router.get("")
async def list_contracts(service: ServiceOf, _: Operator) -> dict[str, Any]:
    return {"data": [_object(stored) for stored in await service.database.run(contracts.list_all)]}


@router.get("/{contract_id}")
async def read(contract_id: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    wanted = parse_contract_id(contract_id)
    found = await service.database.run(lambda conn: contracts.find(conn, wanted))
    if found is None:
        raise NotFound("contract", wanted)
    return _object(found)


@router.get("/{contract_id}/terms")
async def terms(contract_id: str, service: ServiceOf, _: Operator) -> dict[str, Any]:
    """Byte for byte the file that an engine's operator puts into its contracts folder."""
    wanted = parse_contract_id(contract_id)
    found = await service.database.run(lambda conn: contracts.find(conn, wanted))
    if found is None:
        raise NotFound("contract", wanted)
    return found.terms.to_json()


@router.delete("/{contract_id}")
async def revoke(contract_id: str, service: ServiceOf, principal: Operator) -> dict[str, Any]:
    wanted = parse_contract_id(contract_id)
    await service.database.run(
        lambda conn: contract_flow.revoke_contract(conn, wanted, by=principal.key_id, now=service.clock())
    )
    return {
        "contract": wanted,
        "revoked": True,
        "next": f"Remove {wanted}.json from the contracts folder of every engine: from then on they refuse it too.",
    }


def _object(stored: StoredContract) -> dict[str, Any]:
    return {
        "contract": stored.terms.id,
        "terms": stored.terms.to_json(),
        "revoked_at": stored.revoked_at.isoformat() if stored.revoked_at else None,
    }
