"""`GET /admin/events`: every event once, in pages and as a stream that is taken up where it broke off."""

import json
from collections.abc import Iterator
from typing import Any

from sqlalchemy import text

from service.store.codec import encode
from tests.api.stack import Stack, eventually

NO_LAG = {"waiting": 0, "seconds": 0}


def pages(stack: Stack, limit: int) -> Iterator[dict[str, Any]]:
    eventually(lambda: lag(stack) == NO_LAG)
    after = None
    while True:
        params = {"limit": limit} | ({"after": after} if after else {})
        page = stack.admin.get("/admin/events", params=params).json()
        if not page["data"]:
            return
        yield from page["data"]
        after = page["next"]


def lag(stack: Stack) -> dict[str, Any]:
    """A transaction of any test's service that is open just now holds events back."""
    told: dict[str, Any] = stack.admin.get("/admin/events").json()["lag"]
    return told


def streamed(stack: Stack, count: int, **headers: str) -> list[dict[str, Any]]:
    """The first `count` events of a stream that is then broken off."""
    found: list[dict[str, Any]] = []
    given = {"accept": "text/event-stream"} | headers
    with stack.admin.stream("GET", "/admin/events", headers=given) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if len(found) == count:
                    break
    return found


def test_pages_hold_every_event_once_in_the_order_of_their_cursors(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("the words of a client", conversation=conversation)
    found = list(pages(stack, 2))
    own = [event for event in found if event["stream"] == conversation]
    assert [event["type"] for event in own] == [encode(event).type for event in stack.events(conversation)]
    assert len({event["cursor"] for event in found}) == len(found)
    assert "the words of a client" not in json.dumps(found)


def test_a_stream_is_taken_up_after_the_last_event_that_was_seen(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    stack.ask("hello")
    whole = list(pages(stack, 100))
    first = streamed(stack, 2)
    rest = streamed(stack, len(whole) - 2, **{"last-event-id": first[-1]["cursor"]})
    assert first + rest == whole


def test_a_stream_brings_what_happens_while_it_is_open(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    known = len(list(pages(stack, 100)))
    with stack.admin.stream("GET", "/admin/events", headers={"accept": "text/event-stream"}) as answer:
        lines = answer.iter_lines()
        seen = 0
        while seen < known:
            seen += next(lines).startswith("data: ")
        conversation = stack.conversation()
        while not (line := next(lines)).startswith("data: "):
            continue
    assert json.loads(line.removeprefix("data: "))["stream"] == conversation


def test_it_is_for_operators_and_names_what_is_wrong(stack: Stack) -> None:
    assert stack.http.get("/admin/events").status_code == 403
    refused = stack.admin.get("/admin/events", params={"after": "yesterday"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "after"
    assert stack.admin.get("/admin/events", params={"limit": 0}).status_code == 400


def test_it_tells_how_far_it_is_behind(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    with stack.owner.begin() as conn:
        conn.execute(text("SELECT pg_current_xact_id()"))
        conversation = stack.conversation()
        held = lag(stack)
        assert held["waiting"] > 0
        assert held["seconds"] > 0
        assert conversation not in stack.admin.get("/admin/events").text
    assert conversation in {event["stream"] for event in pages(stack, 100)}
