"""Where a turn's next attempt runs: asked until the policy finds an engine, or there is no more use in waiting."""

import asyncio
from time import monotonic

from sqlalchemy.exc import TimeoutError as PoolTimeout

from service import turn_flow
from service.api.fleet_watch import FleetWatch
from service.api.turn_job import Job, Tools, TurnLost
from service.api.waiting_line import WaitingLine
from service.turn_flow import NotPinned, Pinned

PLAN_AGAIN_S = 3.0
"""At the latest, when nothing about the fleet has changed; an engine that is avoided may be tried again by then."""
BUSY_PAUSE_S = 0.5


class Placement:
    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._fleet = FleetWatch(tools.database)
        self._line = WaitingLine(tools.database)

    async def pin(self, job: Job) -> Pinned:
        """Waits until the policy finds an engine, or gives up."""
        deadline = monotonic() + self._tools.settings.turn_wait_s
        plan, job.plan_made = job.plan_made, None
        while True:
            try:
                plan = plan or await self._plan(job)
            except PoolTimeout:
                if monotonic() >= deadline:
                    raise
                job.channel.note("waiting: the service is busy")
                await asyncio.sleep(BUSY_PAUSE_S)
                continue
            if isinstance(plan, Pinned):
                pinned = plan.pinned
                job.plan = pinned.plan
                job.channel.begin(pinned.attempt, pinned.revision, pinned.reason, pinned)
                return plan
            _give_up(plan, deadline, self._tools.settings.turn_wait_s)
            await self._queue(job, plan)
            await self._fleet.change(at_most_s=max(0.0, min(PLAN_AGAIN_S, deadline - monotonic())))
            plan = None

    async def _queue(self, job: Job, plan: NotPinned) -> None:
        place, most = await self._line.find(job.turn), self._tools.settings.max_waiting_turns
        # One that has had an attempt was let in before.
        if place is not None and place.new_before >= most and not job.channel.view.attempt:
            raise TurnLost(
                "queue_full",
                f"{place.new_before} turns wait before this one, and no more than {most} may: {plan.reason}. "
                "Nothing of it was accepted; send it again later.",
            )
        job.channel.note(f"waiting: {plan.reason}" if place is None else place.note(plan.reason))

    async def _plan(self, job: Job) -> Pinned | NotPinned:
        avoid = frozenset(boot for boot, until in job.avoid.items() if until > monotonic())
        return await self._tools.database.run(
            lambda conn: turn_flow.plan_attempt(
                conn,
                tenant=job.tenant,
                conversation=job.conversation,
                turn=job.turn,
                avoid=avoid,
                rebuild_min_tokens=self._tools.settings.rebuild_min_tokens,
                routing=self._tools.settings.routing,
                now=self._tools.clock(),
                new_id=self._tools.new_id,
            )
        )


def _give_up(plan: NotPinned, deadline: float, waited_s: float) -> None:
    if plan.final:
        raise TurnLost("revision_unavailable", f"The turn may not go on elsewhere: {plan.reason}.")
    if monotonic() >= deadline:
        raise TurnLost("no_engine", f"The turn waited {waited_s:g} s for an engine: {plan.reason}.")
