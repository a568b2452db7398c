"""A conversation's next turn goes to the engine whose cache holds it, known by its boot."""

from concurrent.futures import ThreadPoolExecutor

from service.domain.events import TurnPinned
from tests.api.stack import Stack, eventually


def served_by(stack: Stack, chat: str) -> list[str]:
    return [event.engine for event in stack.events(chat) if isinstance(event, TurnPinned)]


def test_a_conversation_stays_with_the_engine_that_answered_it(stack: Stack) -> None:
    stack.start_engine("a", alias=True, boot="boot_a")
    home = stack.start_engine("a", boot="boot_b")
    chat = stack.conversation()
    with ThreadPoolExecutor(1) as pool:
        # While the first by name is busy, the other one answers.
        busy = next(e for e in stack.engines if e.boot == "boot_a")
        busy.faults.hold_after = 1
        held = pool.submit(stack.ask, "hold")
        eventually(lambda: busy.faults.hold_after is None)
        stack.ask("one", conversation=chat)
        busy.faults.release.set()
        held.result()
    stack.ask("two", conversation=chat)
    stack.ask("three", conversation=chat)
    assert served_by(stack, chat) == [home.boot] * 3


def test_an_engine_started_anew_at_its_place_holds_nothing(stack: Stack) -> None:
    first = stack.start_engine("a", alias=True, boot="boot_z")
    chat = stack.conversation()
    stack.ask("one", conversation=chat)
    other = stack.start_engine("a", boot="boot_m")
    stack.ask("two", conversation=chat)
    stack.retire(first)
    stack.start_engine("a", boot="boot_zz")
    stack.ask("three", conversation=chat)
    assert served_by(stack, chat) == ["boot_z", "boot_z", other.boot]
