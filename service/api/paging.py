"""The query of a request, and lists of items, page by page, as OpenAI cuts them."""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from fastapi import Query
from starlette.requests import Request

from service.api.schemas import Include
from service.domain.conversation import Item
from service.domain.errors import InvalidInput

Limit = Annotated[int, Query(ge=1, le=100)]


def check_query(request: Request, *known: str) -> None:
    """What FastAPI would let pass: names that nobody asked for. OpenAI's clients write lists as `include[]`.

    Raises:
        InvalidInput: naming the parameter.
    """
    for name, value in request.query_params.multi_items():
        plain = name.removesuffix("[]")
        if plain not in known:
            raise InvalidInput(f"Unknown parameter: '{plain}'.", plain, "unknown_parameter")
        if plain == "include" and value not in get_args(Include):
            raise InvalidInput(
                f"'include' must be of: {', '.join(get_args(Include))}; not '{value}'.", "include"
            )


def page_of(
    items: Sequence[Item], *, limit: int, order: Literal["asc", "desc"], after: str | None
) -> tuple[Sequence[Item], bool]:
    """Of items that come oldest first: those that follow `after`, and whether there are more than the limit.

    Raises:
        InvalidInput: `after` is none of them.
    """
    ordered = items if order == "asc" else items[::-1]
    start = 0
    if after is not None:
        start = next((n for n, item in enumerate(ordered, 1) if item.id == after), 0)
        if start == 0:
            raise InvalidInput(f"'after' names no item of this list: '{after}'.", "after")
    return ordered[start : start + limit], start + limit < len(ordered)
