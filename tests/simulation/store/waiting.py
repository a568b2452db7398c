"""As service.store.waiting."""

from service.domain.turn import TurnState
from service.store.waiting import Waiting, WaitsFor
from tests.simulation.tables import Session


def waiting_lines(conn: Session) -> dict[str, list[Waiting]]:
    lines: dict[str, list[Waiting]] = {}
    for row in sorted(conn.open_rows(), key=lambda row: (row.opened, row.turn)):
        turn = conn.tables.heads[row.tenant, row.conversation].turns[row.turn]
        if turn.state is TurnState.STARTED:
            after = WaitsFor.NEXT_ATTEMPT if turn.attempt else WaitsFor.ENGINE
            waits_for = after if row.queued_s is None else WaitsFor.WORKER
            one = Waiting(turn=row.turn, waits_for=waits_for, attempted=turn.attempt > 0)
            lines.setdefault(turn.started.alias, []).append(one)
    return lines
