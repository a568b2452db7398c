"""Why a turn has no attempt under way and how many are before it: for whoever reads it, in whichever process it waits."""

from service import turn_flow
from service.api.database import Database
from service.api.waiting_line import WaitingLine
from service.domain.events import TenantId, TurnId
from service.store.waiting import WaitsFor


async def why_waiting(database: Database, line: WaitingLine, tenant: TenantId, turn: TurnId) -> str | None:
    """Sentences; None for a turn that does not wait, or is about to be planned."""
    place = await line.find(turn)
    if place is None:
        return None
    missing = await database.run(lambda conn: turn_flow.missing_engine(conn, tenant, turn))
    said = [f"The request can be answered by no engine now: {missing}."] if missing else []
    if place.waits_for is WaitsFor.WORKER and missing is None:
        said = ["It waits for a worker."]
    elif place.waits_for is WaitsFor.NEXT_ATTEMPT:
        said = ["An attempt of it has failed, and it waits for the next.", *said]
    turns = "turn waits" if place.before == 1 else "turns wait"
    return " ".join([*said, f"{place.before} {turns} before it."]) if said else None


async def waiting_note(database: Database, line: WaitingLine, tenant: TenantId, turn: TurnId) -> str | None:
    """As the process that runs the turn tells its readers; None for one that does not wait."""
    place = await line.find(turn)
    if place is None:
        return None
    missing = await database.run(lambda conn: turn_flow.missing_engine(conn, tenant, turn))
    match place.waits_for:
        case WaitsFor.WORKER:
            usual = "for a worker"
        case WaitsFor.NEXT_ATTEMPT:
            usual = "an attempt has failed, and the next is planned"
        case WaitsFor.ENGINE:
            usual = "for an engine"
    return place.note(missing or usual)
