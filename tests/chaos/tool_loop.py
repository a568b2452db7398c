"""A client in a loop with a tool, and a fault in it: the model calls, the client answers, and both go on, whatever was killed between."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import httpx2
import openai
from openai import OpenAI
from openai.types.responses import FunctionToolParam, Response
from sqlalchemy import Connection

from service.domain.conversation import Conversation
from service.domain.events import ConversationId
from service.domain.items import ItemKind
from service.store import event_store
from tests.chaos.checks import Broken, Violation, broken_chains, unfit
from tests.chaos.client import PATIENCE_S, has_ended
from tests.chaos.faults import Fault, Kind
from tests.chaos.rig import API, TENANT, Rig
from tests.chaos.sweep import Run, Tally, done_and_mended, spring_of, until_quiet
from tests.chaos.wire import Message, Moment, Side, Trap
from tests.engines.simulated import SimulatedEngine
from tests.engines.simulated_text import STOP, TOOL, called, letters

WEATHER = cast(
    "FunctionToolParam",
    {
        "type": "function",
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": True,
    },
)
QUESTION, ROME, SUNNY, ANSWER, NEXT = "weather?", '{"city": "Rome"}', "sunny", "It is sunny.", "and now?"
CALL = called("get_weather", ROME)
TOLD = (
    (ItemKind.MESSAGE, QUESTION),
    (ItemKind.FUNCTION_CALL, ROME),
    (ItemKind.FUNCTION_CALL_OUTPUT, SUNNY),
    (ItemKind.MESSAGE, ANSWER),
    (ItemKind.MESSAGE, NEXT),
    (ItemKind.MESSAGE, ANSWER),
)
"""What stands in the conversation in the end: each once, whatever was said again meanwhile."""
APPENDING = "WITH head AS"

_numbers = count(1)


class CallsOnce(list[str]):
    """What an engine says: a call, until what came of it stands in the prompt."""

    def __init__(self, engine: SimulatedEngine) -> None:
        super().__init__()
        self._engine = engine

    def __bool__(self) -> bool:
        return True

    def pop(self, _: object = 0) -> str:
        return ANSWER if TOOL in self._engine.prompts[-1] else CALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """As its client saw it."""

    conversation: str
    call: str
    responses: tuple[str, str]
    """With the call, and after its output."""
    again: tuple[str, str]
    """What the same requests were told once more."""


def calling(rig: Rig) -> None:
    """All engines of the rig, from here on."""
    for engine in rig.engines.values():
        engine.faults.says = CallsOnce(engine)


def trace_loop(rig: Rig, client: OpenAI) -> list[Message]:
    """The messages of a loop that nothing happens to, as far as the answer."""
    play(client, client.conversations.create().id)
    chat = client.conversations.create().id
    until_quiet(rig.proxy.watch(API))
    watch = rig.proxy.watch(API)
    play(client, chat)
    until_quiet(watch)
    rig.proxy.unwatch()
    return watch.passed


def break_loop(
    rig: Rig, client: OpenAI, kind: Kind, moment: Moment, due: Callable[[Sequence[Message]], bool]
) -> Run:
    """A loop with the fault in it, and a turn after it."""
    chat = client.conversations.create().id
    until_quiet(rig.proxy.watch(API))
    watch = rig.proxy.watch(API, trap=Trap(due=due, moment=moment, spring=spring_of(rig, kind)))
    loop = done_and_mended(rig, watch, lambda: play(client, chat))
    rig.proxy.unwatch()
    asked(client, chat, NEXT)
    with rig.database.connect() as conn:
        found = [*loop_violations(conn, loop, rig.engine), *broken_chains(conn)]
    return Run(kind=kind, moment=moment, at=watch.at, exchanges=(), violations=tuple(found))


def sweep_loops(rig: Rig, client: OpenAI, faults: Sequence[Fault], said: Callable[[Run], None]) -> Tally:
    tally = Tally()
    for fault in faults:
        run = break_loop(rig, client, fault.kind, fault.moment, fault.due)
        tally.runs.append(run)
        said(run)
    return tally


def writes(passed: Sequence[Message], side: Side) -> list[Message]:
    """Of each transaction that appended, the COMMIT, or the reply to it."""
    found, appended = [], False
    for message in passed:
        appended = appended or message.statement.startswith(APPENDING)
        ends = message.side is Side.FRONTEND or message.kind == "CommandComplete"
        if appended and message.side is side and ends and message.statement.startswith("COMMIT"):
            found.append(message)
            appended = False
    return found


def play(client: OpenAI, chat: str) -> Loop:
    """As far as the answer; a turn that ended without one is asked for anew, as a client would."""
    first, first_again = asked(client, chat, QUESTION)
    [call] = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}
    second, second_again = asked(client, chat, [output])
    return Loop(
        conversation=chat,
        call=call.call_id,
        responses=(first.id, second.id),
        again=(first_again.id, second_again.id),
    )


def asked(client: OpenAI, conversation: str, input_: Any) -> tuple[Response, Response]:
    """The answer, and what the same request is told once more."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        key = f"loop-{next(_numbers)}"
        if (answer := _settled(client, conversation, input_, key, deadline)) is not None:
            again = _settled(client, conversation, input_, key, deadline)
            assert again is not None, f"{key} was answered, and then told that it had failed"
            return answer, again
    raise AssertionError(f"no turn of {conversation} was answered in {PATIENCE_S} s")


def _settled(client: OpenAI, conversation: str, input_: Any, key: str, deadline: float) -> Response | None:
    """Sent again, under the same key, until its outcome is known; None where it ended without an answer."""
    while True:
        try:
            return client.responses.create(
                model="production",
                input=input_,
                tools=[WEATHER],
                conversation=conversation,
                extra_headers={"Idempotency-Key": key},
            )
        except openai.APIStatusError as error:
            if has_ended(error):
                return None
            why = str(error)
        except (openai.APIError, httpx2.TransportError) as error:
            why = str(error)
        assert time.monotonic() < deadline, f"{key} of {conversation} has no outcome: {why}"
        time.sleep(0.1)


def loop_violations(conn: Connection, loop: Loop, engine: SimulatedEngine) -> Iterator[Violation]:
    state = event_store.load_conversation(conn, TENANT, ConversationId(loop.conversation))
    yield from unfit(conn, state)
    yield from _items(state, loop)
    if loop.again != loop.responses:
        yield Violation(kind=Broken.DOUBLED, what=f"{loop} was told another response for the same key")
    prompt = bytes_of(engine.prompts[-1])
    both = bytes_of([*letters(CALL), STOP, TOOL, *letters(SUNNY), STOP])
    if prompt.count(both) != 1 or engine.prompts[-1].count(TOOL) != 1:
        yield Violation(
            kind=Broken.LOST, what=f"the prompt of the turn after {loop} has the call and its output not once"
        )


def _items(state: Conversation, loop: Loop) -> Iterator[Violation]:
    said = tuple((item.kind, item.text) for item in state.items)
    if said != TOLD:
        kind = Broken.DOUBLED if set(said) == set(TOLD) else Broken.LOST
        yield Violation(kind=kind, what=f"{state.id} has the items {said}")
    calls = {item.call for item in state.items if item.call is not None}
    if calls != {loop.call}:
        yield Violation(kind=Broken.MIXED, what=f"{state.id} has the calls {calls}, and {loop.call} was told")


def bytes_of(tokens: Sequence[int]) -> bytes:
    return b"".join(token.to_bytes(4) for token in tokens)
