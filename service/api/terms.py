"""Under which terms a request wants its turn to run: in the background, until when, and what if its client goes away."""

from collections.abc import Mapping
from math import isfinite

from service.domain import own_keys
from service.domain.errors import InvalidInput
from service.domain.terms import OnDisconnect, Terms
from service.settings import Settings

LONGEST_DEADLINE_S = 7 * 24 * 3600.0

HEADERS = {"on_disconnect": "x-everturn-on-disconnect", "deadline_s": "x-everturn-deadline-s"}
METADATA = {"on_disconnect": own_keys.ON_DISCONNECT, "deadline_s": own_keys.DEADLINE_S}


def terms_of(
    *,
    background: bool,
    headers: Mapping[str, str],
    metadata: Mapping[str, str],
    settings: Settings,
) -> Terms:
    """A header wins over the metadata, and both over the settings. Raises: InvalidInput: naming either."""

    def given(name: str) -> tuple[str, str] | None:
        for source, place in ((headers, HEADERS[name]), (metadata, METADATA[name])):
            if place in source:
                return source[place], place
        return None

    wanted, limit = given("on_disconnect"), given("deadline_s")
    return Terms(
        background=background,
        on_disconnect=settings.on_disconnect if wanted is None else _on_disconnect(*wanted),
        deadline_s=settings.turn_deadline_s if limit is None else _deadline_s(*limit),
    )


def _on_disconnect(given: str, place: str) -> OnDisconnect:
    if given not in [choice.value for choice in OnDisconnect]:
        raise InvalidInput(f"'{place}' must be one of {', '.join(OnDisconnect)}; not '{given}'.", place)
    return OnDisconnect(given)


def _deadline_s(given: str, place: str) -> float:
    try:
        seconds = float(given)
    except ValueError:
        seconds = float("nan")
    if not isfinite(seconds) or not 0 < seconds <= LONGEST_DEADLINE_S:
        raise InvalidInput(
            f"'{place}' must be a number of seconds above 0 and at most {LONGEST_DEADLINE_S:.0f}; not '{given}'.",
            place,
        )
    return seconds
