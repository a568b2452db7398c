"""Log-probabilities of an answer's tokens: asked for, stored with it, read again, and gone with its words."""

from typing import Any

import pytest

from service.domain.events import TurnScored
from tests.api.stack import TENANT, Stack
from tests.api.test_contract import breaches, check_events
from tests.api.test_resume import said

ASKED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def logprobs(response: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = response["output"][0]["content"][0]["logprobs"]
    return found


def test_every_token_of_the_text_has_its_own_and_those_of_other_candidates(shared_stack: Stack) -> None:
    answer = shared_stack.ask("hello", **ASKED)
    scores = logprobs(answer)
    assert "".join(score["token"] for score in scores) == answer["output"][0]["content"][0]["text"]
    assert {len(score["top_logprobs"]) for score in scores} == {2}
    assert all(bytes(score["bytes"]).decode() == score["token"] for score in scores)
    assert answer["top_logprobs"] == 2
    assert breaches("Response", answer) == []


def test_without_a_number_there_are_no_other_candidates(shared_stack: Stack) -> None:
    answer = shared_stack.ask("hello", include=ASKED["include"])
    assert logprobs(answer)
    assert not any(score["top_logprobs"] for score in logprobs(answer))


def test_an_answer_cut_short_keeps_its_last_token(shared_stack: Stack) -> None:
    answer = shared_stack.ask("hello", **ASKED, max_output_tokens=2)
    assert answer["status"] == "incomplete"
    assert len(logprobs(answer)) == answer["usage"]["output_tokens"] == 2


def test_nobody_gets_them_unasked(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    assert logprobs(shared_stack.ask("hello", conversation=conversation)) == []
    assert not any(isinstance(event, TurnScored) for event in shared_stack.events(conversation))


def test_they_are_read_again_and_end_a_stream(shared_stack: Stack) -> None:
    events = said(shared_stack.stream("hello", **ASKED))
    check_events(events)
    ended = events[-1]["response"]
    assert logprobs(ended)
    assert shared_stack.http.get(f"/v1/responses/{ended['id']}").json() == ended
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert done["logprobs"] == logprobs(ended)


def test_candidates_are_asked_for_without_include_too(shared_stack: Stack) -> None:
    answer = shared_stack.ask("hello", top_logprobs=2)
    assert answer["top_logprobs"] == 2
    assert {len(score["top_logprobs"]) for score in logprobs(answer)} == {2}


def test_none_of_them_asks_for_nothing(shared_stack: Stack) -> None:
    assert logprobs(shared_stack.ask("hello", top_logprobs=0)) == []


def test_they_may_be_asked_for_where_a_response_is_read(shared_stack: Stack) -> None:
    made = shared_stack.ask("hello", **ASKED)
    read = shared_stack.openai.responses.retrieve(made["id"], include=["message.output_text.logprobs"])
    assert logprobs(read.to_dict()) == logprobs(made) != []


@pytest.mark.parametrize(("name", "value"), [("top_logprobs", 21), ("include[0]", ["everything"])])
def test_what_openai_does_not_take_is_refused_by_name(shared_stack: Stack, name: str, value: object) -> None:
    answer = shared_stack.post(input="hello", **ASKED | {name.partition("[")[0]: value})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_what_was_left_of_the_words_is_erased_with_them(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    shared_stack.ask("hello", conversation=conversation, **ASKED)

    def scored() -> TurnScored:
        return next(e for e in shared_stack.events(conversation) if isinstance(e, TurnScored))

    assert scored().scores
    path = f"/admin/conversations/{conversation}/content"
    assert shared_stack.admin.delete(path, params={"tenant": TENANT}).status_code == 200
    assert scored().scores == ()
