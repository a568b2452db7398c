"""A rollout from v12 to v13 in a database that a worker can be let loose on."""

from datetime import UTC, datetime

from sqlalchemy import Engine

from service import rollout_command_flow
from service.domain.artifact import BootId
from service.domain.plan import EngineRole
from service.domain.rollout_events import Drain, Limits, RolloutId, Share, Strategy
from service.store import fleet
from tests.domain.descriptors import V12, V13
from tests.workers.waiting import LONG_S

ROLLOUT = RolloutId("ro_1")
NO_TROUBLE = Limits(refusals=0, failed_attempts=0, failed_rebuilds=0)


def begin(store: Engine, *, warm: int, hold_s: int = 0, pace: int | None = None) -> None:
    """From v12, which the alias is set back to, to v13, which the prefiller serves."""
    strategy = Strategy(
        warm=warm,
        warm_tokens_per_s=pace,
        shift=(Share(percent=50, hold_s=hold_s), Share(percent=100, hold_s=0)),
        drain=Drain.UNPINNED,
        limits=NO_TROUBLE,
    )
    wanted = rollout_command_flow.Wanted(
        alias="production", source=V12.digest, target=V13.digest, strategy=strategy, reason=""
    )
    with store.begin() as conn:
        fleet.set_alias(conn, "production", V12.digest, None)
        fleet.register_engine(
            conn,
            boot=BootId("boot_old"),
            revision=V12.digest,
            address="http://127.0.0.1:9",
            role=EngineRole.BOTH,
            lease_s=LONG_S,
        )
        rollout_command_flow.start(conn, wanted, ROLLOUT, by="test", now=datetime.now(UTC))
