"""Has a turn accepted, also where the database had said nothing of it any more."""

import asyncio

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from service.api.turn_job import STORAGE_TROUBLE
from service.api.wiring import Service
from service.conversation_flow import Accepted, accept_turn
from service.store import turns
from service.turn_request import TurnRequest

LOOK_AGAIN_S = (0.1, 0.5, 1.0)


async def accept(service: Service, wanted: TurnRequest) -> Accepted:
    """`wanted` has its turn's id: where the reply to the COMMIT was lost, that is looked for.

    Raises: as `accept_turn`, and DBAPIError.
    """
    committing = False

    def accepted(conn: Connection) -> Accepted:
        nonlocal committing
        committing = False
        made = accept_turn(
            conn,
            wanted,
            owner=service.owner,
            lease_s=service.settings.turn_lease_s,
            now=service.clock(),
            new_id=service.new_id,
        )
        committing = True
        return made

    try:
        return await service.database.run(accepted)
    except DBAPIError:
        found = await _committed(service, wanted) if committing else None
        if found is None:
            raise
        return found


async def _committed(service: Service, wanted: TurnRequest) -> Accepted | None:
    turn = wanted.turn
    if turn is None:
        return None
    for pause_s in LOOK_AGAIN_S:
        await asyncio.sleep(pause_s)
        try:
            conversation = await service.database.run(lambda conn: turns.find_turn(conn, wanted.tenant, turn))
        except STORAGE_TROUBLE:
            continue
        return None if conversation is None else Accepted(conversation=conversation, turn=turn, fresh=True)
    return None
