"""What of a request stands in its headers, beside the body: heeded where it means something, and else refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from re import fullmatch
from typing import Self

from starlette.requests import Request

from service.api.terms import HEADERS as OF_TERMS
from service.domain.errors import InvalidInput
from service.domain.revision import RevisionDigest, parse_digest

REVISION = "x-everturn-revision"
ON_UPGRADE = "x-everturn-on-upgrade"
IDEMPOTENCY_KEY = "Idempotency-Key"
RETRY_COUNT = "x-stainless-retry-count"

OURS = "x-everturn-"
HEEDED = (ON_UPGRADE, REVISION, *OF_TERMS.values())
"""Of ours, on one route or another."""
NOTHING: Mapping[str, str] = {}
NOTHING_RUNS = dict.fromkeys(OF_TERMS.values(), "it is for a turn that runs, and nothing runs here")
NOT_OF_COUNTS: Mapping[str, str] = NOTHING_RUNS | {
    IDEMPOTENCY_KEY: "counting changes nothing, so it can simply be repeated"
}
NOT_OF_CHAT: Mapping[str, str] = dict.fromkeys(
    OF_TERMS.values(), "nothing is kept of a chat completion, whose caller can end it; ask for a response"
) | {
    IDEMPOTENCY_KEY: "nothing is kept of a chat completion that a repeat could be answered with; ask for a response",
    "If-Match": "a chat completion has no conversation that could have moved on",
    ON_UPGRADE: f"a chat completion has no history that could stay where it is; '{REVISION}' names who is to answer",
}
OF_TURNS_ALONE = dict.fromkeys((REVISION, *OF_TERMS.values()), "it is for a turn; send it with the response")
NOT_OF_NEW_CONVERSATIONS: Mapping[str, str] = OF_TURNS_ALONE | {
    "If-Match": "a conversation that is made has no version yet, and a fork of one leaves it as it is"
}
NOT_OF_UPDATES: Mapping[str, str] = OF_TURNS_ALONE | {
    ON_UPGRADE: "a conversation is given its policy when it is made, and a turn its own with its response"
}
NOT_OF_CANCELLATIONS: Mapping[str, str] = {
    "If-Match": "a running response moves its conversation on by itself, and one that has ended is left as it is"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """`on_upgrade` and `revision` as they were sent."""

    idempotency_key: str | None = None
    request_hash: str = ""
    head: int | None = None
    repeated: bool = False
    """The client says that it has sent this before, under no key."""
    on_upgrade: str | None = None
    revision: str | None = None

    @classmethod
    def by(cls, request: Request, hash_: str = "") -> Self:
        """Raises: InvalidInput: no key, no ETag, or a header that is there and says nothing."""
        for name in (ON_UPGRADE, REVISION):
            if request.headers.get(name) == "":
                raise InvalidInput(f"'{name}' is empty: leave it out, or say what you want.", name)
        key = idempotency_key(request)
        return cls(
            idempotency_key=key,
            request_hash=hash_,
            head=if_match(request),
            repeated=key is None and is_repeat(request),
            on_upgrade=request.headers.get(ON_UPGRADE),
            revision=request.headers.get(REVISION),
        )


def if_match(request: Request) -> int | None:
    """The version in `If-Match`, which reading a conversation gives as its `ETag`.

    Raises:
        InvalidInput: not such an ETag.
    """
    given = request.headers.get("if-match", "*").strip()
    if given == "*":
        return None
    found = fullmatch(r'"(\d{1,18})"', given)
    if found is None:
        raise InvalidInput(
            "'If-Match' must be the ETag of the conversation, a number in quotes, or *.", "If-Match"
        )
    return int(found[1])


def idempotency_key(request: Request) -> str | None:
    """Raises: InvalidInput: not a key."""
    key = request.headers.get("idempotency-key")
    if key is not None and not fullmatch(r"[\x21-\x7e]{1,255}", key):
        raise InvalidInput(
            "'Idempotency-Key' must be 1 to 255 printable ASCII characters without spaces.", "Idempotency-Key"
        )
    return key


def is_repeat(request: Request) -> bool:
    """By what OpenAI's clients say when they send something again by themselves."""
    return request.headers.get(RETRY_COUNT, "0") != "0"


def refuse_headers(request: Request, refused: Mapping[str, str] = NOTHING) -> None:
    """Args: refused: why each means nothing here, beside those of ours that there are none of.

    Raises:
        InvalidInput: naming the header.
    """
    for name in request.headers:
        if name.startswith(OURS) and name not in HEEDED:
            raise InvalidInput(
                f"Unknown header: '{name}'. Headers that begin with '{OURS}' are Everturn's own; "
                f"there are {', '.join(HEEDED)}.",
                name,
                "unknown_parameter",
            )
    for name, why in refused.items():
        if name in request.headers:
            raise InvalidInput(f"Unsupported header: '{name}': {why}.", name, "unsupported_parameter")


def pin_of(given: str | None) -> RevisionDigest | None:
    """Raises: InvalidInput: that is no revision's digest."""
    return None if given is None else parse_digest(given, "revision")
