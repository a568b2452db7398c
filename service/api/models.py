"""`/v1/models`: the aliases that a request may name, each with the revision that answers it now."""

from typing import Any

from fastapi import APIRouter
from sqlalchemy import Connection

from service.api.wiring import ServiceOf, TenantOf
from service.domain.errors import NotFound
from service.store import fleet

router = APIRouter(prefix="/v1/models")


@router.get("")
async def list_models(service: ServiceOf, _: TenantOf) -> dict[str, Any]:
    return {"object": "list", "data": await service.database.run(_models)}


@router.get("/{model}")
async def read_model(model: str, service: ServiceOf, _: TenantOf) -> dict[str, Any]:
    for known in await service.database.run(_models):
        if known["id"] == model:
            return known
    raise NotFound("model", model, "model")


def _models(conn: Connection) -> list[dict[str, Any]]:
    registered = {r.revision: int(r.registered_at.timestamp()) for r in fleet.list_revisions(conn)}
    return [
        {
            "id": alias.name,
            "object": "model",
            "created": registered[alias.revision],
            "owned_by": "everturn",
            "revision": alias.revision,
            "on_upgrade": alias.on_upgrade,
        }
        for alias in fleet.list_aliases(conn)
    ]
