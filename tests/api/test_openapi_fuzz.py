"""Every route of the OpenAPI document, asked with what the document allows and with what it forbids.

Seeded, and bounded: a few requests drawn for each route, some of them about things that are there; and each way to break its description
once. Of schemathesis' checks these are left out:

- `positive_data_acceptance`: what a field may be also depends on what is there and on other fields, which no schema says (a digest that is
  registered, a tool's name among the tools, one of two fields); such a refusal has to name the field (`named_refusal`).
- `missing_required_header`: no route has a header that must be sent, but for the key, which `ignored_auth` leaves out and makes up.
- `allow_header_conformance`: `/v1/responses/input_tokens` is a response's path too, and its 405 names what such a one takes.
- `use_after_free`, `ensure_resource_availability` and runs that pass ids on: what is deleted here can still be read as a record (a
  response whose conversation is gone), and ids belong to tenants; test_stored_responses and test_conversation_edits say what is gone when.
- `object_level_authorization`: test_foreign_ids asks every route for another tenant's things.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, GenerationMode, Response, checks
from schemathesis.config import GenerationConfig
from schemathesis.core.result import Ok

from service.api.app import ROUTED
from service.api.openapi.document import document
from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.api.test_openapi import closed
from tests.conftest import copied

EXAMPLES = 10
FORBIDDEN_EXAMPLES = 5
SECONDS = 30
MADE = document([route for module in ROUTED for route in module.router.routes])
SCHEMA = schemathesis.openapi.from_dict(MADE | {"components": closed(MADE["components"])})
OPERATIONS = {
    one.label: one for found in SCHEMA.get_all_operations() if isinstance(found, Ok) for one in (found.ok(),)
}
STRICT = [
    label
    for label, one in OPERATIONS.items()
    if one.body or one.query or (label.split()[1].startswith("/v1") and one.headers)
]
"""That can be asked for what is not described."""
ALWAYS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
bounded = settings(
    max_examples=FORBIDDEN_EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
TWO_ROUTES = ("GET /admin/rollouts/{rollout_id}/events", "POST /v1/responses/input_tokens")
"""Whose path is another route's too, with its last word in the place of a name or an id: what has not the form of one is not there (404)."""
Known = dict[str, str]
CLASHING = ("previous_response_id", "instructions", "revision")
"""With a conversation that has had its first turn."""


def named_refusal(_: CheckContext, response: Response, case: "Case[Any]") -> None:
    """In the place of `positive_data_acceptance`."""
    if response.status_code == requests.codes.bad_request:
        error = response.json()["error"]
        assert error["param"], (
            f"{case.operation.label} refuses what the document allows, and names nothing: {error}"
        )


@pytest.fixture(scope="module")
def stack(postgres_server: EmbeddedPostgres, template_database: str) -> Iterator[Stack]:
    with (
        copied(postgres_server, template_database) as url,
        running_stack(url, turn_wait_s=0, shutdown_s=1, engine_lease_s=60) as running,
    ):
        running.start_engine("a", alias=True)
        yield running


@pytest.fixture(scope="module")
def fleet(stack: Stack) -> Known:
    other = stack.start_engine("b")
    key = stack.admin.post("/admin/keys", json={"scope": "auditor"}).json()["key_id"]
    stack.admin.put("/admin/tenants/spare", json={}).raise_for_status()
    return {
        "tenant": "spare",
        "digest": other.revision,
        "revision": other.revision,
        "boot": other.boot,
        "key_id": key,
    }


@pytest.fixture
def known(stack: Stack, fleet: Known) -> Known:
    """One of each thing that a path or a body can name; none that another test needs to be left as it is."""
    response = stack.ask("hello")
    conversation = response["conversation"]["id"]
    items = stack.http.get(f"/v1/conversations/{conversation}/items").json()["data"]
    return fleet | {
        "conversation_id": conversation,
        "conversation": conversation,
        "item_id": items[0]["id"],
        "response_id": response["id"],
        "previous_response_id": response["id"],
        "model": "production",
        "alias": "production",
        "name": "spare",
        "view": "turns",
    }


@pytest.mark.parametrize("label", OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(stack: Stack, known: Known, label: str) -> None:
    session = requests.Session()

    @settings(bounded, max_examples=EXAMPLES)
    @given(case=OPERATIONS[label].as_strategy(GenerationMode.POSITIVE), there=st.booleans())
    def ask(case: "Case[Any]", there: bool) -> None:
        if there:
            about(case, known)
        send(stack, session, case, [*ALWAYS, named_refusal, checks.ignored_auth])

    ask()
    session.close()


@pytest.mark.parametrize("label", STRICT)
def test_what_the_document_forbids_is_refused_as_it_says(stack: Stack, label: str) -> None:
    operation = OPERATIONS[label]
    session = requests.Session()

    @bounded
    @given(case=operation.as_strategy(GenerationMode.NEGATIVE))
    def ask(case: "Case[Any]") -> None:
        send(stack, session, case, [*ALWAYS, checks.negative_data_rejection])

    ask()
    session.close()


@pytest.mark.parametrize("label", OPERATIONS)
def test_each_way_to_break_the_document_is_refused_as_it_says(stack: Stack, label: str) -> None:
    """A part missing, of another type, beyond its limits; a method that is not there."""
    operation = OPERATIONS[label]
    held = [*ALWAYS, *([checks.negative_data_rejection] if label in STRICT else [])]
    held += [] if label in TWO_ROUTES else [checks.unsupported_method]
    with requests.Session() as session:
        for case in SCHEMA.iter_coverage_cases(
            operation, generation_modes=[GenerationMode.NEGATIVE], generation_config=GenerationConfig()
        ):
            send(stack, session, case, held)


def about(case: "Case[Any]", known: Known) -> None:
    """In the place of ids that were made up, those of things that are there, and none that contradict them."""
    for place in (case.path_parameters, case.query, case.body):
        if isinstance(place, dict):
            place.update({name: value for name, value in known.items() if name in place})
    if isinstance(case.body, dict) and "conversation" in case.body:
        for name in CLASHING:
            case.body.pop(name, None)


def send(stack: Stack, session: requests.Session, case: "Case[Any]", held: list[Callable[..., Any]]) -> None:
    scopes = [scope for one in case.operation.definition.raw.get("security", ()) for scope in one]
    key = stack.secrets.tenant if "tenantKey" in scopes else stack.secrets.operator
    headers = {"authorization": f"Bearer {key}"} if scopes else {}
    response = case.call(base_url=stack.url, session=session, headers=headers, timeout=SECONDS)
    case.validate_response(response, checks=held, headers=headers)
