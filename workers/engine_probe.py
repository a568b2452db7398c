"""What the launcher asks the engine itself: is it up, what is it, and how much does it still have to do."""

from dataclasses import dataclass
from enum import StrEnum

import httpx

from service.domain.adapter import Adapter, ServedAdapter, effective, parse_adapters
from service.domain.artifact import BootId
from service.domain.errors import EngineFailed, EverturnError, Unavailable
from service.domain.revision import Descriptor

TIMEOUT_S = 3.0


class Health(StrEnum):
    GOOD = "good"
    BROKEN = "broken"
    """It answers that it can never serve again."""
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    boot: BootId
    descriptor: Descriptor
    adapters: tuple[Adapter, ...] | None = None
    """Beside the base, by name; None for an engine that takes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProbe:
    http: httpx.Client
    address: str

    def health(self) -> Health:
        try:
            answer = self.http.get(f"{self.address}/health", timeout=TIMEOUT_S)
        except httpx.TransportError:
            return Health.SILENT
        return Health.GOOD if answer.is_success else Health.BROKEN

    def require_up(self) -> None:
        """Raises: Unavailable."""
        if (health := self.health()) is not Health.GOOD:
            raise Unavailable(f"the engine at {self.address} is {health}")

    def identity(self) -> Identity:
        """Raises:
        Unavailable: it has not measured itself yet.
        EngineFailed: what it says cannot be its identity.
        """
        try:
            answer = self.http.get(f"{self.address}/everturn/identity", timeout=TIMEOUT_S)
        except httpx.TransportError as error:
            raise Unavailable(f"the engine does not say what it is: {error!r}") from error
        if not answer.is_success:
            raise Unavailable(f"the engine has no identity ({answer.status_code}): {answer.text[:300]}")
        try:
            document = answer.json()
            served = document.get("adapters")
            identity = Identity(
                boot=BootId(document["boot"]),
                descriptor=Descriptor.from_json(document["descriptor"]),
                adapters=None if served is None else parse_adapters(served),
            )
            claimed = document["revision"]
        except (ValueError, KeyError, TypeError, AttributeError, EverturnError) as error:
            raise EngineFailed(f"the engine's identity cannot be read: {error!r}") from error
        if identity.descriptor.digest != claimed:
            raise EngineFailed(f"the engine claims {claimed}, but measured {identity.descriptor.digest}")
        for adapter in identity.adapters or ():
            if isinstance(adapter, ServedAdapter):
                _require_own(adapter, identity.descriptor)
        return identity

    def unmeasured(self) -> str | None:
        """Why it has no revision any more, once it says that it has none."""
        try:
            answer = self.http.get(f"{self.address}/everturn/identity", timeout=TIMEOUT_S)
            error = answer.json().get("error") or {}
            return str(error["message"]) if error.get("type") == "unmeasured" else None
        except (httpx.TransportError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def running(self) -> int | None:
        """Requests that are not answered yet; None when it does not say."""
        try:
            answer = self.http.get(f"{self.address}/load", timeout=TIMEOUT_S)
            return int(answer.json()["server_load"])
        except (httpx.TransportError, ValueError, KeyError, TypeError):
            return None


def _require_own(adapter: ServedAdapter, base: Descriptor) -> None:
    measured = effective(base, adapter.adapter).digest
    if adapter.revision != measured:
        raise EngineFailed(
            f"the engine claims {adapter.revision} for adapter '{adapter.model}', which is {measured}"
        )
