"""Every error that Everturn raises on purpose, in one tree.

EverturnError
├── InvalidInput            the caller's fault; names the field and the way out
│   ├── InvalidDescriptor   a revision descriptor that cannot identify anything
│   └── InvalidManifest     a KV artifact manifest that cannot be trusted
├── Unauthenticated         no key, or a key that is not ours
├── Forbidden               a key without the scope that the operation needs
├── NotFound                no such thing, or not this tenant's
├── Gone                    erased for good: it was there, and nobody can bring it back
├── TooManyRequests         the key has used up its rate
├── Conflict                true when asked, but not any more
│   ├── ConversationLocked  another turn is open on the conversation
│   ├── HeadMoved           the conversation is not at the version that the caller has seen
│   ├── VersionConflict     the stream moved under an append
│   ├── EngineRetired       an operator took this engine process out of the fleet
│   ├── EnginePinned        conversations may go on nowhere else than on this engine, or on this revision
│   ├── CanaryDiffers       an engine does not answer as the first one of its revision did
│   ├── FenceLost           another attempt or worker took over
│   └── RevisionMismatch    an engine is not the revision that was asked of it
├── Unavailable             nothing wrong with the request; try again later
│   ├── NoEngine            no engine serves the wanted revision now
│   ├── RebuildFailed       KV could not be rebuilt, and the turn may not go on without
│   └── EngineFailed        an engine broke or aborted an attempt
└── Internal                ours: a broken invariant
"""

from dataclasses import dataclass


class EverturnError(Exception):
    """One line for a person: what was wrong, why, and the way out."""


@dataclass
class InvalidInput(EverturnError):
    message: str
    param: str | None = None
    code: str = "invalid_value"

    def __str__(self) -> str:
        return self.message


def key_reused(key: str | None, other: str) -> InvalidInput:
    """Args: other: what the request is that the key belongs to."""
    return InvalidInput(
        f"The Idempotency-Key '{key}' belongs to another request, {other}. Use a new key for a new request.",
        "Idempotency-Key",
        "idempotency_key_reused",
    )


class InvalidDescriptor(InvalidInput): ...


class InvalidManifest(InvalidInput): ...


class Unauthenticated(EverturnError): ...


class Forbidden(EverturnError): ...


@dataclass
class NotFound(EverturnError):
    kind: str
    id: str
    param: str | None = None

    def __str__(self) -> str:
        return f"No {self.kind} with id '{self.id}'."


class Gone(EverturnError): ...


@dataclass
class TooManyRequests(EverturnError):
    limit: int
    retry_after_s: float
    reset_s: float
    """Until as many requests as the limit could come at once again."""

    def __str__(self) -> str:
        return f"This key may make {self.limit} requests a minute; try again in {self.retry_after_s:.1f} s."


class Conflict(EverturnError): ...


class ConversationLocked(Conflict): ...


class HeadMoved(Conflict): ...


class VersionConflict(Conflict): ...


class EngineRetired(Conflict): ...


@dataclass
class EnginePinned(Conflict):
    serving: str
    """An engine, or a revision with all its engines."""
    conversations: tuple[str, ...]

    @property
    def shown(self) -> tuple[str, ...]:
        return self.conversations[:20]

    def __str__(self) -> str:
        more = ", …" if len(self.conversations) > len(self.shown) else ""
        return (
            f"{len(self.conversations)} conversations are stay_strict, and nothing else than {self.serving} serves their "
            f"revision: {', '.join(self.shown)}{more}. With force=true it goes, and their turns are refused."
        )


class CanaryDiffers(Conflict): ...


class FenceLost(Conflict): ...


@dataclass
class RevisionMismatch(Conflict):
    wanted: str
    measured: str
    differing: tuple[str, ...] = ()

    def __str__(self) -> str:
        fields = ", ".join(self.differing) or "unknown, the wanted descriptor is not at hand"
        return f"The engine is {self.measured}, not {self.wanted}; differing fields: {fields}."


class Unavailable(EverturnError): ...


class NoEngine(Unavailable): ...


class RebuildFailed(Unavailable): ...


class EngineFailed(Unavailable): ...


class Internal(EverturnError): ...
