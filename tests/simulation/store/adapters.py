"""As service.store.adapters: simulated engines have none."""

from service.domain.artifact import BootId
from service.store.adapters import Held
from tests.simulation.tables import Session


def held_adapters(conn: Session, boot: BootId) -> Held:
    return {}
