"""The names in a request's query: those that its route has, and no others; what nobody reads would be ignored in silence."""

from collections.abc import Iterable, Iterator, Mapping

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute

from service.domain.errors import InvalidInput

Names = Mapping[str, frozenset[str]]
"""By method and path."""


def names_of(routes: Iterable[BaseRoute], read_by_hand: Mapping[str, Iterable[str]]) -> Names:
    """Args: read_by_hand: beside what the handlers have in their signatures."""
    known = {
        f"{m} {route.path}": route for route in routes if isinstance(route, APIRoute) for m in route.methods
    }
    return {
        where: frozenset((*_in_signature(route.dependant), *read_by_hand.get(where, ())))
        for where, route in known.items()
    }


def check_query(request: Request, names: Names) -> None:
    """OpenAI's clients write lists as `include[]`, and others as `include`.

    Raises:
        InvalidInput: naming the parameter.
    """
    if not request.scope["query_string"]:
        return
    known = names[f"{request.method} {request.scope['route'].path}"]
    for name in request.query_params:
        if name not in known and f"{name}[]" not in known:
            raise InvalidInput(f"Unknown parameter: '{name}'.", name, "unknown_parameter")


def _in_signature(dependant: Dependant) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _in_signature(inner)
