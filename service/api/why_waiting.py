"""Why a turn has no attempt yet and how many are before it: for whoever reads it, in whichever process it waits."""

from sqlalchemy import Connection

from service import turn_flow
from service.api.response_object import in_background
from service.api.wiring import Service
from service.conversation_flow import StoredTurn
from service.domain.errors import NoEngine
from service.domain.events import TenantId
from service.domain.turn import TurnState
from service.store import heads


async def why_waiting(service: Service, tenant: TenantId, stored: StoredTurn) -> str | None:
    """A sentence or two; None for a turn that does not wait, or is about to be planned."""
    turn = stored.turn
    if turn.state is not TurnState.STARTED or turn.attempt:
        return None
    before = await service.line.before(turn.id)
    if before is None:
        return None

    def missing(conn: Connection) -> str | None:
        state = heads.load_head(conn, tenant, stored.conversation, turn=turn.id)
        try:
            turn_flow.find_engine(conn, state, started=turn.started)
        except NoEngine as error:
            return str(error)
        return None

    reason = await service.database.run(missing)
    if reason is None and in_background(turn):
        reason = "It waits for a worker."
    turns = "turn waits" if before == 1 else "turns wait"
    return reason and f"{reason} {before} {turns} before it."
