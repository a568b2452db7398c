"""As service.store.contracts."""

from service.domain.contract import Contract
from tests.simulation.tables import Session


def in_force(conn: Session) -> list[Contract]:
    now_ms = conn.now.timestamp() * 1000
    return [terms for terms in conn.tables.contracts.values() if terms.ends_ms > now_ms]
