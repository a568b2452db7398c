"""What the OpenAPI document has to be told of a route: what its handler does not say in its signature.

Parameters, security and descriptions come from the handlers themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from service.api.body import StrictBody

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    id: str
    says: str
    """In one line."""
    answer: Any
    """Type of the JSON that it succeeds with; None where there is none."""
    body: type[StrictBody] | None = None
    body_may_be_absent: bool = False
    stream: Any = None
    """Type of the events, where it can answer with a stream of them."""
    refuses: tuple[int, ...] = ()
    """Statuses beside those that follow from its parts."""
    query: Mapping[str, Json] = field(default_factory=dict)
    """Parameters that its handler reads itself."""
    headers: Mapping[str, Json] = field(default_factory=dict)
    otherwise: Mapping[int, Any] = field(default_factory=dict)
    """Types of answers under another status; None for an empty one."""
    text: bool = False
    """Answers in plain text."""


LAST_EVENT: Json = {"Last-Event-ID": {"type": "string", "description": "Takes a stream up after this event."}}
