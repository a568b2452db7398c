"""Which refusals OpenAI's clients may send again, by the headers that they go by."""

import pytest

from service.api.errors import error_response
from service.domain.errors import Conflict, EverturnError, InvalidInput, Unavailable, VersionConflict


@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (InvalidInput("wrong", "input"), 400, None),
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
