"""Every route of the OpenAPI document, asked with what the document allows and with what it forbids.

Seeded, and bounded: a few requests of each kind to each route, some of them about things that are there.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, checks
from schemathesis.core.result import Ok

from service.api.app import ROUTED
from service.api.openapi.document import document
from stack.postgres import EmbeddedPostgres
from tests.api.stack import Stack, running_stack
from tests.api.test_openapi import closed
from tests.conftest import copied

EXAMPLES = 5
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
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
Known = dict[str, str]
CLASHING = ("previous_response_id", "instructions", "revision")
"""With a conversation that has had its first turn."""


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

    @bounded
    @given(case=OPERATIONS[label].as_strategy(GenerationMode.POSITIVE), there=st.booleans())
    def ask(case: "Case[Any]", there: bool) -> None:
        if there:
            about(case, known)
        send(stack, session, case, ALWAYS)

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
    case.validate_response(response, checks=held)
