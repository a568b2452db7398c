"""What one tenant may use, and the refusal that names the limit."""

from dataclasses import dataclass

from service.domain.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """None is no limit of the tenant's own; the service's settings hold for everybody."""

    request_bytes: int | None = None
    items: int | None = None
    """Of one conversation."""
    conversations: int | None = None
    """That are not deleted."""
    concurrent_turns: int | None = None
    tokens: int | None = None
    """Of one conversation's history, from which on it takes no further turn."""

    def check(self, name: str, used: int) -> None:
        """Args:
        used: with what is asked for.

        Raises:
            InvalidInput: above the limit of that name.
        """
        most: int | None = getattr(self, name)
        if most is not None and used > most:
            raise InvalidInput(
                f"This tenant's limit '{name}' is {most}, and this would make it {used}. "
                f"{WAY_OUT[name]}, or ask the operator to raise the limit.",
                None,
                f"limit_{name}",
            )


NO_LIMITS = Limits()

WAY_OUT = {
    "request_bytes": "Send less at once",
    "items": "Begin a new conversation",
    "conversations": "Delete one that is done with",
    "concurrent_turns": "Wait until a turn has ended",
    "tokens": "Begin a new conversation",
}
