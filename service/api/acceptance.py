"""Has a turn accepted and planned in one transaction, also where the database had said nothing of it any more."""

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from service.api.turn_job import STORAGE_TROUBLE, Taken
from service.api.wiring import Service
from service.conversation_flow import Accepted, accept_turn
from service.store import turns
from service.turn_flow import NotPinned, Pinned, plan_attempt
from service.turn_request import TurnRequest

if TYPE_CHECKING:
    from service.api.prompt import Prompt

LOOK_AGAIN_S = (0.1, 0.5, 1.0)


async def accept(service: Service, wanted: TurnRequest) -> Taken:
    """`wanted` has its turn's id: where the reply to the COMMIT was lost, that is looked for.

    Raises: as `accept_turn` and `plan_attempt`, and DBAPIError.
    """
    committing, made = False, None
    prompts: list[asyncio.Task[Prompt]] = []

    def taken(conn: Connection) -> Taken:
        nonlocal committing
        committing = False
        now = service.clock()
        accepted = accept_turn(
            conn,
            wanted,
            owner=service.owner,
            lease_s=service.settings.turn_lease_s,
            now=now,
            new_id=service.new_id,
        )
        plan = _first_plan(conn, service, wanted, accepted, now)
        prompt = service.runner.begin_prompt(plan)
        prompts.extend([] if prompt is None else [prompt])
        committing = True
        return Taken(accepted=accepted, plan=plan, prompt=prompt)

    try:
        made = await service.database.run(taken)
    except DBAPIError:
        found = await _committed(service, wanted) if committing else None
        if found is None:
            raise
        return Taken(accepted=found)
    finally:
        for prompt in prompts:
            if made is None or prompt is not made.prompt:
                prompt.cancel()
    return made


def _first_plan(
    conn: Connection, service: Service, wanted: TurnRequest, accepted: Accepted, now: datetime
) -> Pinned | NotPinned | None:
    """One in the background is planned by the worker that takes it."""
    if accepted.begun is None or wanted.terms.background:
        return None
    return plan_attempt(
        conn,
        tenant=wanted.tenant,
        conversation=accepted.conversation,
        turn=accepted.turn,
        avoid=frozenset(),
        rebuild_min_tokens=service.settings.rebuild_min_tokens,
        routing=service.settings.routing,
        now=now,
        new_id=service.new_id,
        head=accepted.begun.head,
        transcript=accepted.begun.transcript,
    )


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
