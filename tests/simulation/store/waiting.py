"""As service.store.waiting."""

from service.domain.events import TurnId
from tests.simulation.tables import Session


def waiting_lines(conn: Session) -> dict[str, list[TurnId]]:
    lines: dict[str, list[TurnId]] = {}
    for row in sorted(conn.open_rows(), key=lambda row: (row.opened, row.turn)):
        turn = conn.tables.heads[row.tenant, row.conversation].turns[row.turn]
        if turn.pinned is None:
            lines.setdefault(turn.started.alias, []).append(row.turn)
    return lines
