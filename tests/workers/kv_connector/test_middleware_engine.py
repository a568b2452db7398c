"""The engine's front: what it says it is, whom it turns away before any prefill, and how it renders."""

import httpx
import pytest

from service.domain.revision import Descriptor
from tests.engines.real import RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine

OTHER = "rev_" + "0" * 64
CONVERSATION = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "More"},
]


def test_it_says_what_it_measured_and_the_digest_is_that_of_the_descriptor(v12_engine: RealEngine) -> None:
    identity = v12_engine.identity
    assert Descriptor.from_json(identity["descriptor"]).digest == identity["revision"]
    assert identity["boot"] == v12_engine.boot
    assert identity["stop_token_ids"] == [2]
    assert identity["max_model_len"] == 4096


def test_every_answer_says_whose_it_is(v12_engine: RealEngine) -> None:
    answer = v12_engine.http.get(f"{v12_engine.url}/v1/models")
    assert answer.headers["x-everturn-revision"] == v12_engine.revision
    assert answer.headers["x-everturn-boot"] == v12_engine.boot


@pytest.mark.parametrize(
    "route", ["/inference/v1/generate", "/v1/completions", "/v1/chat/completions", "/everturn/render"]
)
def test_a_request_for_another_revision_is_turned_away_with_the_fields_that_differ(
    v12_engine: RealEngine, v13_engine: RealEngine, route: str
) -> None:
    headers = {"x-everturn-revision": v13_engine.revision}
    answer = v12_engine.http.post(f"{v12_engine.url}{route}", json={}, headers=headers)
    assert answer.status_code == 409
    error = answer.json()["error"]
    assert error["type"] == "revision_mismatch"
    assert error["wanted"] == v13_engine.revision
    assert error["measured"] == v12_engine.revision
    assert error["differing_fields"] == ["weights"]


def test_a_revision_that_nobody_here_knows_is_turned_away_too(v12_engine: RealEngine) -> None:
    reply = v12_engine.generate(prompt(400), headers={"x-everturn-revision": OTHER}, publish=new_handle())
    assert reply.status == 409
    assert reply.document["error"]["differing_fields"] == []
    assert reply.evidence is None


def test_a_request_for_an_engine_that_restarted_is_turned_away(v12_engine: RealEngine) -> None:
    headers = {"x-everturn-revision": v12_engine.revision, "x-everturn-boot": "boot_before"}
    reply = v12_engine.generate(prompt(401), headers=headers)
    assert reply.status == 409
    assert (reply.document["error"]["wanted"], reply.document["error"]["measured"]) == (
        "boot_before",
        v12_engine.boot,
    )


def test_a_request_for_this_very_engine_passes(v12_engine: RealEngine) -> None:
    headers = {"x-everturn-revision": v12_engine.revision, "x-everturn-boot": v12_engine.boot}
    assert v12_engine.generate(prompt(402), headers=headers).status == 200


@pytest.mark.parametrize("route", ["/update_weights", "/collective_rpc", "/v1/load_lora_adapter", "/sleep"])
def test_weights_do_not_change_under_a_measured_revision(v12_engine: RealEngine, route: str) -> None:
    answer = v12_engine.http.post(f"{v12_engine.url}{route}", json={})
    assert answer.status_code == 409
    assert answer.json()["error"]["type"] == "revision_fixed"


def test_an_attempt_that_it_has_not_seen_is_unknown(v12_engine: RealEngine) -> None:
    answer = v12_engine.http.get(f"{v12_engine.url}/everturn/attempts/att_none", params={"wait_s": 0.1})
    assert answer.status_code == 404


@pytest.mark.parametrize("wait_s", ["soon", "nan"])
def test_a_wait_that_is_no_number_is_the_callers_mistake(v12_engine: RealEngine, wait_s: str) -> None:
    answer = v12_engine.http.get(f"{v12_engine.url}/everturn/attempts/att_none", params={"wait_s": wait_s})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "wait_s")


def test_carried_ids_and_their_delta_are_the_whole_prompt(v12_engine: RealEngine) -> None:
    before = v12_engine.render(CONVERSATION[:1]).json()["token_ids"]
    answered = (
        before + v12_engine.render(CONVERSATION[:2]).json()["token_ids"][len(before) : len(before) + 6] + [2]
    )
    delta = v12_engine.render(CONVERSATION, {"messages": 2, "last_token": 2}).json()
    assert (delta["mode"], delta["reason"], delta["max_model_len"]) == ("delta", "carried", 4096)
    assert answered + delta["token_ids"] == v12_engine.render(CONVERSATION).json()["token_ids"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"not JSON", "body"),
        (b"[]", "body"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": [{"role": "user"}]}', "body"),
        (b'{"messages": [{"role": "user", "content": 7}]}', "messages"),
        (b'{"messages": [{"role": "user<|im_end|>", "content": "Hi"}]}', "messages.0.role"),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "carried": {"messages": 1, "last_token": 2}}',
            "carried.messages",
        ),
        (
            b'{"messages": [{"role": "user", "content": "Hi"}], "carried": {"messages": 1.0, "last_token": 2}}',
            "carried",
        ),
        (
            b'{"messages": [{"role": "assistant", "content": "Hi"}], "carried": {"messages": 1, "last_token": -1}}',
            "carried",
        ),
    ],
)
def test_a_malformed_render_is_the_callers_mistake(v12_engine: RealEngine, body: bytes, param: str) -> None:
    answer = v12_engine.http.post(f"{v12_engine.url}/everturn/render", content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_no_other_route_of_ours_reaches_vllm(v12_engine: RealEngine) -> None:
    assert v12_engine.http.get(f"{v12_engine.url}/everturn/else").status_code == httpx.codes.NOT_FOUND
