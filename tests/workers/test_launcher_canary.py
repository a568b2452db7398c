"""Before it registers, an engine answers the canary; what its launcher does with the answer, and with the API's word on it."""

import signal

import pytest

from tests.workers.fake_api import FakeApi
from tests.workers.launched import Launched, gone
from tests.workers.test_launcher import refused, serve

TERM = signal.SIGTERM


def test_an_engine_may_answer_no_canary(launched: Launched, api: FakeApi) -> None:
    serve(launched, api, "--canary", "off")
    assert "canary" not in api.calls[0].body
    launched.signal(TERM)
    assert "answers no canary: --canary is off" in launched.end()[1]


def test_its_operator_says_how_much_of_the_canary_must_be_the_same(launched: Launched, api: FakeApi) -> None:
    serve(launched, api, "--canary", "prefix:7")
    assert api.calls[0].body["canary"]["compared"] == 7


def test_an_engine_that_does_not_answer_as_its_revision_does_never_serves(
    launched: Launched, api: FakeApi
) -> None:
    api.refuse = (409, "token 3 of its answer is 5, and was 4", "canary_differs")
    launched.start()
    status, said = launched.end()
    assert (status, "token 3 of its answer is 5, and was 4" in said.splitlines()[-1]) == (3, True)
    assert gone(launched.engine_pid())
    assert api.known == set()


def test_an_engine_without_an_answer_to_the_canary_says_why(launched: Launched, api: FakeApi) -> None:
    launched.behave(render_status=400)
    launched.start()
    status, said = launched.end()
    assert (status, "has no answer to the canary (400)" in said.splitlines()[-1]) == (1, True)
    assert api.calls == []


@pytest.mark.parametrize("given", ["prefix:0", "prefix:17", "some", ""])
def test_a_canary_that_means_nothing_is_refused(launched: Launched, given: str) -> None:
    assert f"--canary '{given}' must be off, exact, or prefix:N" in refused(launched, "--canary", given)
