"""What stands beside the bodies: repeats, retries, what is ours, and what browsers are not told."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import httpx
import pytest

from service.api.responses import extra_headers
from service.conversation_flow import find_response
from service.domain.events import TurnId
from service.store import fleet
from tests.api.stack import TENANT, LosesAnAnswer, Stack, eventually, sse

REPEATED = {"x-stainless-retry-count": "1"}


def test_a_repeat_without_a_key_is_the_open_turn_and_then_the_last_one(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    engine.faults.hold_after = 2
    conversation = stack.conversation()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stack.ask, "hello", conversation=conversation)
        eventually(lambda: engine.faults.hold_after is None)
        again = pool.submit(stack.ask, "hello", conversation=conversation, headers=REPEATED)
        eventually(lambda: len(stack.state(conversation).turns) == 1)
        engine.faults.release.set()
        assert first.result() == again.result()
    assert stack.ask("hello", conversation=conversation, headers=REPEATED) == first.result()
    assert len(engine.prompts) == 1


def test_a_repeat_by_the_previous_response_is_found_although_the_head_has_moved(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    before = stack.ask("one")
    first = stack.ask("two", previous_response_id=before["id"])
    assert stack.ask("two", previous_response_id=before["id"], headers=REPEATED) == first


@pytest.mark.parametrize("count", ["0", None])
def test_a_first_sending_of_the_same_words_is_another_turn(shared_stack: Stack, count: str | None) -> None:
    conversation = shared_stack.conversation()
    first = shared_stack.ask("hello", conversation=conversation)
    headers = {} if count is None else {"x-stainless-retry-count": count}
    assert shared_stack.ask("hello", conversation=conversation, headers=headers)["id"] != first["id"]


def test_a_repeat_of_anything_but_the_last_turn_is_another_turn(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    first = shared_stack.ask("one", conversation=conversation)
    second = shared_stack.ask("two", conversation=conversation)
    third = shared_stack.ask("one", conversation=conversation, headers=REPEATED)
    assert list(shared_stack.state(conversation).turns) == [first["id"], second["id"], third["id"]]


def test_a_repeat_that_opens_a_conversation_opens_another(shared_stack: Stack) -> None:
    """Equal first words of two people are no sign that one of them repeats the other."""
    first = shared_stack.ask("hello")
    assert shared_stack.ask("hello", headers=REPEATED)["id"] != first["id"]


def test_a_lost_answer_is_fetched_by_the_official_clients_own_retry(stack: Stack) -> None:
    engine = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    with httpx.Client(transport=LosesAnAnswer()) as http:
        client = stack.openai.with_options(max_retries=2, http_client=cast("Any", http))
        answer = client.responses.create(model="production", input="hello", conversation=conversation)
    assert answer.status == "completed"
    assert len(engine.prompts) == len(stack.state(conversation).turns) == 1


def test_what_could_not_be_taken_may_be_sent_again_and_says_when(stack: Stack) -> None:
    stack.retire(stack.start_engine("a", alias=True))
    answer = stack.http.post("/v1/responses/input_tokens", json={"input": "hello"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-should-retry"] == "true"


def test_every_answer_has_a_number_of_its_own(shared_stack: Stack) -> None:
    answers = [shared_stack.http.get(path) for path in ("/v1/models", "/v1/nothing", "/v1/responses/none")]
    numbers = {a.headers["x-request-id"] for a in answers}
    assert len(numbers) == 3
    assert all(n.startswith("req_") for n in numbers)


def test_an_error_that_nobody_expected_has_its_number_in_the_answer_and_in_the_log(
    shared_stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stored = shared_stack.admin.get("/admin/rebuilds", params={"rollout": "\0"})
    assert stored.status_code == 400
    assert stored.headers["x-request-id"].startswith("req_")

    def broken(_: object) -> None:
        msg = "a fault of ours"
        raise RuntimeError(msg)

    monkeypatch.setattr(fleet, "list_aliases", broken)
    ours = shared_stack.http.get("/v1/models")
    assert ours.status_code == 500
    assert ours.headers["x-request-id"].startswith("req_")
    assert f"request {ours.headers['x-request-id']}: answered 500: a fault of ours" in caplog.text


def test_what_is_ours_is_in_the_headers_too(shared_stack: Stack) -> None:
    answer = shared_stack.post(input="hello")
    response = answer.json()
    assert answer.headers["x-everturn-response"] == response["id"]
    assert answer.headers["x-everturn-conversation"] == response["conversation"]["id"]
    assert answer.headers["x-everturn-revision"] == response["revision"]
    assert answer.headers["x-everturn-plan"] == response["kv"]["plan"]
    assert answer.headers["x-everturn-kv-source"] == response["kv"]["source"]
    assert answer.headers["x-everturn-kv-reason"] == response["kv"]["reason"]
    assert answer.headers["x-everturn-kv-tokens-loaded"] == str(response["kv"]["tokens_loaded"])


def test_a_stream_that_is_read_again_has_all_of_it_in_its_headers(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    first = stack.ask("hello, and tell me of the sea")
    stack.await_artifacts(first["conversation"]["id"], 1)
    second = stack.ask("two", previous_response_id=first["id"])
    with stack.http.stream("GET", f"/v1/responses/{second['id']}", params={"stream": "true"}) as answer:
        answer.read()
    loaded = second["kv"]["tokens_loaded"]
    assert loaded > 0
    assert answer.headers["x-everturn-kv-tokens-loaded"] == str(loaded)
    assert answer.headers["x-everturn-kv-source"] == second["kv"]["source"]
    assert answer.headers["x-everturn-kv-reason"] == second["kv"]["reason"]


def test_a_reason_that_no_header_could_carry_is_carried_as_far_as_it_can(shared_stack: Stack) -> None:
    turn = TurnId(shared_stack.ask("hello")["id"])
    with shared_stack.database.begin() as conn:
        stored = find_response(conn, TENANT, turn)
    assert stored.turn.completed is not None
    odd = replace(stored.turn.completed, kv_reason="Zürich\r\nset-cookie: a")
    headers = extra_headers(replace(stored, turn=replace(stored.turn, completed=odd)))
    assert headers["x-everturn-kv-reason"] == "Z?rich set-cookie: a"


def test_a_stream_says_its_revision_before_its_first_event(shared_stack: Stack) -> None:
    with shared_stack.http.stream("POST", "/v1/responses", json={"input": "hello", "stream": True}) as answer:
        events = list(sse(answer))
    response = events[-1]["response"]
    assert answer.headers["x-everturn-revision"] == response["revision"]
    assert answer.headers["x-everturn-response"] == response["id"]
    assert answer.headers["x-everturn-conversation"] == response["conversation"]["id"]
    assert answer.headers["x-everturn-plan"] == response["kv"]["plan"]
    assert answer.headers["x-everturn-kv-reason"] == response["kv"]["reason"]


def test_a_stream_that_waits_for_a_rebuild_says_so_in_its_headers(stack: Stack) -> None:
    stack.start_engine("a", alias=True)
    conversation = stack.ask("hello, and tell me of the sea")["conversation"]["id"]
    new = stack.start_engine("b")
    stack.move_alias(new)
    body = {"input": "two", "conversation": conversation, "stream": True}
    with stack.http.stream("POST", "/v1/responses", json=body) as answer:
        answer.read()
    assert answer.headers["x-everturn-revision"] == new.revision
    assert answer.headers["x-everturn-plan"] == "rebuild"
    assert "revision changed" in answer.headers["x-everturn-kv-reason"]


@pytest.mark.parametrize(
    "asked",
    [
        {"on_upgrade": "stay"},
        {"headers": {"x-everturn-on-upgrade": "stay"}},
        {"metadata": {"everturn.on_upgrade": "stay"}},
    ],
    ids=["body", "header", "metadata"],
)
def test_the_policy_of_a_turn_can_be_given_in_three_places(stack: Stack, asked: dict[str, object]) -> None:
    old = stack.start_engine("a", alias=True)
    conversation = stack.conversation()
    stack.ask("one", conversation=conversation)
    stack.move_alias(stack.start_engine("b"))
    assert stack.ask("two", conversation=conversation, **asked)["revision"] == old.revision


@pytest.mark.parametrize("place", ["body", "header", "metadata"])
def test_a_named_revision_answers_whatever_the_alias_says(stack: Stack, place: str) -> None:
    stack.start_engine("a", alias=True)
    other = stack.start_engine("b")
    places: dict[str, dict[str, Any]] = {
        "body": {"revision": other.revision},
        "header": {"headers": {"x-everturn-revision": other.revision}},
        "metadata": {"metadata": {"everturn.revision": other.revision}},
    }
    conversation = stack.conversation(on_upgrade="stay")
    stack.ask("one", conversation=conversation)
    assert stack.ask("two", conversation=conversation, **places[place])["revision"] == other.revision


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"revision": "v13"}, "revision"),
        ({"revision": "rev_" + "0" * 64}, "revision"),
        ({"metadata": {"everturn.on_upgrade": "never"}}, "on_upgrade"),
    ],
)
def test_a_revision_or_policy_that_is_none_is_refused_by_name(
    shared_stack: Stack, asked: dict[str, object], param: str
) -> None:
    answer = shared_stack.post(input="hello", **asked)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


POLICIES: dict[str, dict[str, Any]] = {
    "body": {"json": {"on_upgrade": "stay"}},
    "header": {"headers": {"x-everturn-on-upgrade": "stay"}},
    "metadata": {"json": {"metadata": {"everturn.on_upgrade": "stay"}}},
}


@pytest.mark.parametrize("place", POLICIES)
def test_the_policy_of_a_conversation_can_be_given_in_three_places(stack: Stack, place: str) -> None:
    old = stack.start_engine("a", alias=True)
    made = stack.http.post("/v1/conversations", **POLICIES[place]).json()
    assert made["on_upgrade"] == "stay"
    stack.ask("one", conversation=made["id"])
    stack.move_alias(stack.start_engine("b"))
    assert stack.ask("two", conversation=made["id"])["revision"] == old.revision


@pytest.mark.parametrize("place", POLICIES)
def test_a_fork_is_given_its_policy_in_the_same_places(shared_stack: Stack, place: str) -> None:
    parent = shared_stack.ask("one")["conversation"]["id"]
    asked = POLICIES[place] | {
        "json": POLICIES[place].get("json", {}) | {"fork_of": {"conversation": parent}}
    }
    assert shared_stack.http.post("/v1/conversations", **asked).json()["on_upgrade"] == "stay"


def test_the_most_explicit_policy_of_a_conversation_wins(shared_stack: Stack) -> None:
    asked = {"metadata": {"everturn.on_upgrade": "replay"}}
    headers = {"x-everturn-on-upgrade": "stay"}
    for body, policy in ((asked, "stay"), (asked | {"on_upgrade": "stay_strict"}, "stay_strict")):
        made = shared_stack.http.post("/v1/conversations", json=body, headers=headers).json()
        assert (made["on_upgrade"], made["metadata"]) == (policy, asked["metadata"])


@pytest.mark.parametrize(
    "asked",
    [
        {"headers": {"x-everturn-on-upgrade": "never"}},
        {"json": {"metadata": {"everturn.on_upgrade": "never"}}},
    ],
    ids=["header", "metadata"],
)
def test_a_policy_of_a_conversation_that_is_none_is_refused(
    shared_stack: Stack, asked: dict[str, Any]
) -> None:
    refused = shared_stack.http.post("/v1/conversations", **asked)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "on_upgrade")


OF_TURNS = {
    "x-everturn-revision": "rev_" + "0" * 64,
    "x-everturn-on-disconnect": "cancel",
    "x-everturn-deadline-s": "30",
}


@pytest.mark.parametrize(("header", "value"), [*OF_TURNS.items(), ("If-Match", "*")])
def test_what_means_nothing_for_a_conversation_that_is_made_is_refused_by_name(
    shared_stack: Stack, header: str, value: str
) -> None:
    refused = shared_stack.http.post("/v1/conversations", headers={header: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, header, "unsupported_parameter")


@pytest.mark.parametrize(("header", "value"), [*OF_TURNS.items(), ("x-everturn-on-upgrade", "stay")])
def test_what_an_update_of_metadata_does_not_change_is_refused_by_name(
    shared_stack: Stack, header: str, value: str
) -> None:
    path = f"/v1/conversations/{shared_stack.conversation()}"
    refused = shared_stack.http.post(path, json={"metadata": {}}, headers={header: value})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["code"]) == (400, header, "unsupported_parameter")


@pytest.mark.parametrize(
    "key", ["everturn.onupgrade", "everturn.", "Everturn.on_upgrade", "everturn.waiting"]
)
def test_a_key_of_ours_that_there_is_none_of_is_refused_with_those_that_there_are(
    shared_stack: Stack, key: str
) -> None:
    asked = {"metadata": {"mine": "x", key: "stay"}}
    path = f"/v1/conversations/{shared_stack.conversation()}"
    answers = {
        "everturn.on_upgrade, everturn.revision, everturn.on_disconnect, everturn.deadline_s": (
            shared_stack.post(input="hello", **asked),
        ),
        "there is everturn.on_upgrade.": (
            shared_stack.http.post("/v1/conversations", json=asked),
            shared_stack.http.post(path, json=asked),
        ),
    }
    for known, refused in answers.items():
        for answer in refused:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", key)
            assert f"'{key}'" in error["message"]
            assert known in error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hello"}),
        ("/v1/responses/input_tokens", {"input": "hello"}),
        ("/v1/chat/completions", {"model": "production", "messages": [{"role": "user", "content": "hello"}]}),
        ("/v1/conversations", {}),
        ("/v1/conversations/conv_none", {"metadata": {}}),
        ("/v1/responses/resp_none/cancel", {}),
    ],
)
def test_a_header_of_ours_that_there_is_none_of_is_refused_with_those_that_there_are(
    shared_stack: Stack, path: str, body: dict[str, Any]
) -> None:
    refused = shared_stack.http.post(path, json=body, headers={"X-Everturn-OnUpgrade": "stay"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unknown_parameter")
    assert error["param"] == "x-everturn-onupgrade"
    assert "x-everturn-on-upgrade, x-everturn-revision, x-everturn-on-disconnect" in error["message"]


@pytest.mark.parametrize("key", ["everturn.revision", "everturn.on_disconnect", "everturn.deadline_s"])
def test_a_key_that_is_for_a_turn_is_none_of_a_conversation(shared_stack: Stack, key: str) -> None:
    refused = shared_stack.http.post("/v1/conversations", json={"metadata": {key: "30"}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, key)


def test_keys_that_only_look_like_ours_are_the_clients_own(shared_stack: Stack) -> None:
    metadata = {"everturn": "x", "everturn_on_upgrade": "x", "my.everturn.x": "x"}
    conversation = shared_stack.conversation(metadata=metadata)
    assert shared_stack.ask("hello", conversation=conversation, metadata=metadata)["metadata"] == metadata


def test_a_key_names_its_tenant_whatever_organization_and_project_a_client_says(shared_stack: Stack) -> None:
    conversation = shared_stack.conversation()
    named = shared_stack.openai.with_options(organization="org-other", project="proj_other")
    assert named.conversations.retrieve(conversation).id == conversation


def test_browsers_of_other_sites_are_told_nothing(shared_stack: Stack) -> None:
    site = {"origin": "https://example.org", "access-control-request-method": "POST"}
    asked = shared_stack.http.options("/v1/responses", headers=site)
    read = shared_stack.http.get("/v1/models", headers=site)
    assert asked.status_code == 405
    assert not [h for a in (asked, read) for h in a.headers if h.startswith("access-control")]
