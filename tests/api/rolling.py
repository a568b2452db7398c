"""A rollout over HTTP, with a thread in the place of the beat that moves it on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.api.stack import Stack, eventually
from workers.rollouts import advance_rollouts

BEAT_S = 0.05
CALM = {"refusals": 0, "failed_attempts": 0, "failed_rebuilds": 0, "failed_canaries": 0}


def advance(stack: Stack) -> None:
    advance_rollouts(stack.database, stack.bell.ring, warm_min_tokens=stack.settings.warm_min_tokens)


@contextmanager
def beating(stack: Stack) -> Iterator[None]:
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            advance(stack)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def start(stack: Stack, to: str, **more: Any) -> str:
    answer = stack.admin.post("/admin/rollouts", json={"alias": "production", "to": to} | more)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["rollout"])


def look(stack: Stack, rollout: str) -> dict[str, Any]:
    answer = stack.admin.get(f"/admin/rollouts/{rollout}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def move(stack: Stack, rollout: str, how: str, **why: str) -> dict[str, Any]:
    answer = stack.admin.post(f"/admin/rollouts/{rollout}/{how}", json=why)
    assert answer.status_code == 200, answer.text
    after: dict[str, Any] = answer.json()
    return after


def await_state(stack: Stack, rollout: str, state: str) -> dict[str, Any]:
    eventually(lambda: look(stack, rollout)["state"] == state)
    return look(stack, rollout)
