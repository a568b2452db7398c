"""Lists of items, page by page, as OpenAI cuts them, and what may be included in them."""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from fastapi import Query
from starlette.requests import Request

from service.api.schemas import Include
from service.domain.conversation import Item
from service.domain.errors import InvalidInput

Limit = Annotated[int, Query(ge=1, le=100)]


def check_include(request: Request) -> None:
    """Raises: InvalidInput: it names what OpenAI does not have."""
    for name, value in request.query_params.multi_items():
        if name.removesuffix("[]") == "include" and value not in get_args(Include):
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
