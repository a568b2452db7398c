"""Which refusals OpenAI's clients may send again, by the headers that they go by; and where else to look for what is not there."""

import json
from http import HTTPStatus

import pytest

from service.api.errors import LISTS, error_response
from service.domain.errors import (
    Conflict,
    ConversationLocked,
    EverturnError,
    InvalidInput,
    NotFound,
    Unavailable,
    VersionConflict,
)
from tests.api.stack import Stack


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (InvalidInput("wrong", "input"), 400, None),
        (ConversationLocked("a turn is under way"), 400, None),
        (Conflict("not any more"), 409, "false"),
        (VersionConflict("two met"), 409, "true"),
        (InvalidInput("too many", "input", "limit_concurrent_turns"), 429, "true"),
        (InvalidInput("too large", None, "limit_request_bytes"), 413, None),
        (Unavailable("busy"), 503, "true"),
    ],
    ids=repr,
)
def test_what_passes_by_itself_may_be_sent_again_and_nothing_else(
    error: EverturnError, status: int, again: str | None
) -> None:
    answer = error_response(error)
    assert answer.status_code == status
    assert answer.headers.get("x-should-retry") == again
    assert answer.headers.get("retry-after") == ("1" if again == "true" else None)


def test_what_is_not_there_is_answered_with_where_the_others_are_listed(shared_stack: Stack) -> None:
    for kind, path in LISTS.items():
        said = json.loads(bytes(error_response(NotFound(kind, "x")).body))["error"]["message"]
        assert said == f"No {kind} with id 'x'. GET {path} lists them."
        client = shared_stack.admin if path.startswith("/admin/") else shared_stack.http
        assert client.get(path).status_code == HTTPStatus.OK, path


def test_whose_conversations_there_are_is_not_told() -> None:
    said = json.loads(bytes(error_response(NotFound("conversation", "x")).body))["error"]["message"]
    assert said == "No conversation with id 'x'."
