"""The OpenAPI document of the service: made from its routes, its bodies' models and the types of its answers."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.routing import BaseRoute

from service.api import wiring
from service.api.body import StrictBody
from service.api.openapi.admin_operations import ADMIN, PLAIN
from service.api.openapi.inputs import NULL, REFINED, TAKEN_WITHOUT_EFFECT, as_taken, or_null
from service.api.openapi.objects import ErrorAnswer
from service.api.openapi.operation import Json, Operation
from service.api.openapi.v1_operations import V1

VERSION = "1"
OPERATIONS = {**V1, **ADMIN, **PLAIN}
"""By method and path."""

SAYS = (
    "OpenAI's Responses and Conversations APIs under /v1, on revisions that are measured; the fleet, its keys and its "
    "record under /admin. What OpenAI's clients find here, and every deviation: docs/openai-compatibility.md."
)
REF = "#/components/schemas/{model}"
SCOPES: dict[Callable[..., Any] | None, tuple[str, ...]] = {
    wiring.tenant_of: ("tenantKey",),
    wiring.operator: ("operatorKey",),
    wiring.engine: ("engineKey", "operatorKey"),
    wiring.auditor: ("auditorKey", "operatorKey"),
}
"""Which keys open a route follows from what its handler depends on."""

WORDS = {
    400: "A parameter is wrong, or asks for what is not there; `param` names it. Also: the conversation is locked by a turn.",
    401: "No key, or one that is not known.",
    403: "A key of another scope.",
    404: "No such thing, or not this tenant's.",
    409: "True when asked, but not any more.",
    410: "Erased for good.",
    412: "The conversation has moved on from the version in `If-Match`.",
    413: "The body is too large.",
    415: "The body is not sent as JSON.",
    422: "The idempotency key has been used with another body.",
    429: "The key has used up its rate, or the tenant has as many turns under way as it may.",
    500: "The service failed; the request id finds it in the log.",
    503: "Nothing wrong with the request; try again later.",
}
NAMES = {
    "service__api__keys__LimitsBody": "TenantLimitsBody",
    "service__api__rollouts__LimitsBody": "RolloutLimitsBody",
    "service__domain__limits__Limits": "TenantLimits",
    "service__domain__rollout_events__Limits": "RolloutLimits",
}
WRITES = {"POST", "PUT", "DELETE"}
IDS = {
    "boot": "^boot_",
    "contract_id": "^ctr_[0-9a-f]{64}$",
    "conversation_id": "^conv_",
    "digest": "^rev_[0-9a-f]{64}$",
    "item_id": "^(msg|fc|fco|rs)_",
    "key_id": "^key_[0-9a-f]{32}$",
    "rebuild_id": "^rb_",
    "response_id": "^resp_",
    "rollout_id": "^ro_",
    "tenant": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
}
"""In paths: what has another form is not there."""


def document(routes: Sequence[BaseRoute]) -> Json:
    """Raises: KeyError: a route that nothing is told of."""
    read = {f"{method} {r.path}": r for r in routes if isinstance(r, APIRoute) for method in r.methods}
    made: Json = get_openapi(title="Everturn", version=VERSION, description=SAYS, routes=routes)
    kinds = _Kinds(ErrorAnswer, *(kind for told in OPERATIONS.values() for kind in _kinds_of(told)))
    paths: Json = {}
    for where in dict.fromkeys([*read, *PLAIN]):
        method, path = where.split(" ")
        signature = made["paths"].get(path, {}).get(method.lower(), {})
        described = _operation(OPERATIONS[where], method, read.get(where), signature, kinds)
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": made["openapi"],
        "info": made["info"],
        "paths": paths,
        "components": {
            "schemas": _untitled(kinds.definitions),
            "securitySchemes": {
                f"{scope}Key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"A key of scope `{scope}`.",
                }
                for scope in ("tenant", "operator", "auditor", "engine")
            },
            "responses": {
                str(status): _described(words, _json(kinds[ErrorAnswer]), refused=True)
                for status, words in WORDS.items()
            },
            "headers": HEADERS,
        },
    }


HEADERS: Json = {
    "x-request-id": {
        "description": "Of this request, in the service's log too.",
        "required": True,
        "schema": {"type": "string", "pattern": "^req_[0-9a-f]{32}$"},
    },
    "retry-after": {"description": "Seconds.", "schema": {"type": "string", "pattern": "^[0-9]+$"}},
    "x-should-retry": {
        "description": "Whether OpenAI's clients send it again.",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
}


class _Kinds:
    """Schemas of types, with all that they are made of under `components`."""

    def __init__(self, *kinds: Any) -> None:
        wanted = list({repr(kind): kind for kind in kinds}.values())
        refined = [kind for named in REFINED.values() for kind in named.values()]
        numbered = [(repr(kind), "validation", TypeAdapter(kind)) for kind in (*wanted, *refined)]
        made, rest = TypeAdapter.json_schemas(numbered, ref_template=REF)  # type: ignore[arg-type]  # invariance
        self._by_kind = {name: _named(schema) for (name, _), schema in made.items()}
        self.definitions: Json = dict(sorted(_named(rest["$defs"]).items()))
        for kind, fields in REFINED.items():
            self._refine(kind, fields)
        for body in TAKEN_WITHOUT_EFFECT:
            self.definitions[body.__name__] = as_taken(body, self.definitions[body.__name__])

    def __getitem__(self, kind: Any) -> Json:
        schema: Json = _untitled(self._by_kind[repr(kind)])
        return schema

    def _refine(self, kind: type[StrictBody], fields: dict[str, Any]) -> None:
        properties = self.definitions[kind.__name__]["properties"]
        for name, refined in fields.items():
            stated = properties[name]
            listed = next((one for one in stated.get("anyOf", ()) if one != NULL), stated)
            limits = {key: value for key, value in listed.items() if key in ("minItems", "maxItems")}
            schema = self._by_kind[repr(refined)] | limits
            properties[name] = or_null(schema) if NULL in stated.get("anyOf", ()) else schema


def _kinds_of(told: Operation) -> Iterator[Any]:
    yield from (k for k in (told.answer, told.body, told.stream, *told.otherwise.values()) if k is not None)


def _operation(told: Operation, method: str, route: APIRoute | None, signature: Json, kinds: _Kinds) -> Json:
    scopes = () if route is None else tuple(_scopes(route.dependant))
    path = [p for p in signature.get("parameters", ()) if p["in"] == "path"]
    query = [_given(p) for p in signature.get("parameters", ()) if p["in"] == "query"]
    read = [_parameter("query", name, schema) for name, schema in told.query.items()]
    headers = [_parameter("header", name, schema) for name, schema in told.headers.items()]
    parameters = [*map(_given, path), *query, *read, *headers]
    statuses = {
        *told.refuses,
        *((401, 403, 500, 503) if scopes else ()),
        *((429,) if "tenantKey" in scopes else ()),
        *((400, 404) if path else ()),
        *((400,) if parameters else ()),
        *((400, 413, 415) if told.body else ()),
        *((409,) if method in WRITES else ()),
    } - set(told.otherwise)
    described: Json = {"operationId": told.id, "summary": told.says}
    if signature.get("description"):
        described["description"] = signature["description"].strip()
    if scopes:
        described["security"] = [{scope: []} for scope in scopes]
    if parameters:
        described["parameters"] = parameters
    if told.body is not None:
        described["requestBody"] = {
            "required": not told.body_may_be_absent,
            "content": _json(kinds[told.body]),
        }
    success = 200 if route is None or route.status_code is None else route.status_code
    described["responses"] = {
        str(success): _answer(told, kinds),
        **{
            str(status): _described(HTTPStatus(status).phrase, _json(kinds[kind]) if kind else None)
            for status, kind in told.otherwise.items()
        },
        **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)},
    }
    return described


def _answer(told: Operation, kinds: _Kinds) -> Json:
    content: Json = {}
    if told.answer is not None:
        content |= _json(kinds[told.answer])
    if told.stream is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-event-data": kinds[told.stream]}
    if told.text:
        content["text/plain"] = {"schema": {"type": "string"}}
    return _described("Done.", content)


def _described(words: str, content: Json | None, *, refused: bool = False) -> Json:
    names = [*HEADERS] if refused else ["x-request-id"]
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return {"description": words, "headers": headers} | ({} if content is None else {"content": content})


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _scopes(dependant: Dependant) -> Iterable[str]:
    for inner in dependant.dependencies:
        yield from SCOPES.get(inner.call, ())
        yield from _scopes(inner)


def _given(parameter: Json) -> Json:
    """As FastAPI reads it: nothing in a URL is null, no name in a path is empty, and an id has its form."""
    schema = dict(parameter["schema"])
    if "anyOf" in schema:
        schema = next(one for one in schema["anyOf"] if one != NULL) | {
            key: value for key, value in schema.items() if key == "description"
        }
    schema.pop("title", None)
    if parameter["in"] == "path" and schema.get("type") == "string" and "enum" not in schema:
        named = IDS.get(parameter["name"])
        schema |= {"minLength": 1} if named is None else {"pattern": named}
    return parameter | {"schema": schema}


def _parameter(place: str, name: str, schema: Json) -> Json:
    told = {key: value for key, value in schema.items() if key != "description"}
    says = {"description": schema["description"]} if "description" in schema else {}
    return {"name": name, "in": place, "required": False} | says | {"schema": told}


def _named(schemas: Json) -> Json:
    """Types of one name in two modules have the modules' in theirs."""
    text = json.dumps(schemas)
    for name, plain in NAMES.items():
        text = text.replace(name, plain)
    renamed: Json = json.loads(text)
    return renamed


def _untitled(schema: Any) -> Any:
    """Pydantic names every field after itself, and says null where one may be left out."""
    if isinstance(schema, dict):
        return {
            key: _untitled(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str)) and (key, value) != ("default", None)
        }
    return [_untitled(one) for one in schema] if isinstance(schema, list) else schema
