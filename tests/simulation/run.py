"""One seed from its beginning to its verdict."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from service.domain.events import AttemptFailed, KvRebuilt, KvRefused, TurnCompleted, TurnFailed
from tests.simulation.checks import violations
from tests.simulation.clients import Outcome
from tests.simulation.faults import Planned, Step
from tests.simulation.loop import Deadlock
from tests.simulation.scenario import Scenario, of_seed
from tests.simulation.world import World, fresh_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    seed: int
    violations: tuple[str, ...]
    digest: str
    met: frozenset[Step]
    crashed: frozenset[Step]
    happened: Counter[str]
    plans: Counter[str]
    """Of accepted answers: where their KV came from; and what was refused."""
    answered: int
    failed: int
    commits: int
    virtual_s: float

    @property
    def how_to_rerun(self) -> str:
        return f"python -m tests.simulation --seed {self.seed} --trace"


def run_seed(
    seed: int,
    *,
    scenario: Scenario | None = None,
    planned: Planned | None = None,
    trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Within `simulated()`."""
    loop = fresh_loop(seed)
    asyncio.set_event_loop(None)
    world = World(loop, scenario or of_seed(seed), planned=planned, trace=trace)
    try:
        found = _found(world)
        virtual_s = loop.time()
        world.close()
    finally:
        loop.close()
    told = [one for client in world.clients for exchange in client.exchanges for one in exchange.told[-1:]]
    return Verdict(
        seed=seed,
        violations=found,
        digest=world.digest.hexdigest(),
        met=frozenset(world.faults.met),
        crashed=frozenset(world.faults.crashed),
        happened=world.faults.happened,
        plans=_plans(world),
        answered=sum(one.outcome is Outcome.ANSWERED for one in told),
        failed=sum(one.outcome is Outcome.FAILED for one in told),
        commits=world.server.commits,
        virtual_s=virtual_s,
    )


def _found(world: World) -> tuple[str, ...]:
    try:
        world.loop.run_until_complete(world.run())
    except Deadlock:
        return ("nothing is left that could ever happen, and nothing has ended",)
    except Exception as error:  # noqa: BLE001 whatever broke, it is this seed's verdict
        return (f"{type(error).__name__}: {error}",)
    try:
        return tuple(violations(world))
    except Exception as error:  # noqa: BLE001 an illegal history shows as an error of the fold
        return (f"the record cannot be read: {type(error).__name__}: {error}",)


def _plans(world: World) -> Counter[str]:
    found = Counter[str]()
    for rows in world.server.tables.events.values():
        for row in rows:
            if isinstance(row.event, TurnCompleted):
                found[f"kv {row.event.kv_source}"] += 1
            elif isinstance(row.event, KvRefused):
                found[f"refused {row.event.refusal.reason}"] += 1
            elif isinstance(row.event, AttemptFailed | TurnFailed | KvRebuilt):
                found[row.event.name] += 1
    return found
