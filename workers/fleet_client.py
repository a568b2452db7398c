"""The operators' side of the API's `/admin`; every answer that is not a yes becomes one of our errors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from service.domain.adapter import Adapter
from service.domain.artifact import BootId
from service.domain.canary import Generation
from service.domain.contract import Contract, ContractId
from service.domain.errors import (
    CanaryDiffers,
    Conflict,
    EverturnError,
    Forbidden,
    InvalidInput,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from service.domain.plan import EngineRole
from service.domain.revision import Descriptor, RevisionDigest

TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """What the engine answered, and how many tokens of that are to be compared."""

    generation: Generation
    compared: int

    def to_json(self) -> dict[str, Any]:
        return {
            "prompt": list(self.generation.prompt),
            "answer": list(self.generation.answer),
            "compared": self.compared,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What an engine measured of itself, and where it serves."""

    boot: BootId
    address: str
    role: EngineRole
    descriptor: Descriptor
    expected_revision: RevisionDigest | None
    canary: Canary | None = None

    def to_json(self) -> dict[str, Any]:
        expected = {} if self.expected_revision is None else {"expected_revision": self.expected_revision}
        canary = {} if self.canary is None else {"canary": self.canary.to_json()}
        return {
            "boot": self.boot,
            "address": self.address,
            "role": self.role,
            "descriptor": self.descriptor.to_json(),
        } | (expected | canary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    lease_s: float
    """Seconds until the registration ends unless a heartbeat comes."""
    adapters: Mapping[str, RevisionDigest | None] | None
    """What the API takes the engine to serve beside its base, by name; None from one that knows of no adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetClient:
    """Raises:
    Unavailable: the API cannot be reached, or cannot answer now; worth trying again.
    Unauthenticated, Forbidden, Conflict, NotFound, InvalidInput: it answered, and the answer is no.
    """

    http: httpx.Client
    api: str
    key_file: Path

    def register(self, registration: Registration) -> float:
        """Returns the seconds until the registration ends unless a heartbeat comes."""
        return float(self._call("POST", "/admin/engines", registration.to_json())["lease_s"])

    def heartbeat(self, boot: BootId, requests: int | None = None) -> Renewed | None:
        """Args: requests: that it has not answered yet; None where it does not say. None when the API does not know this boot."""
        told = "" if requests is None else f"?{urlencode({'requests': requests})}"
        try:
            answer = self._call("POST", f"/admin/engines/{boot}/heartbeat{told}")
        except NotFound:
            return None
        return Renewed(lease_s=float(answer["lease_s"]), adapters=answer.get("adapters"))

    def serve_adapters(
        self, boot: BootId, adapters: Sequence[Adapter], canaries: Mapping[str, Canary]
    ) -> dict[str, str]:
        """In the place of what the API took the engine to serve; `canaries` by name.

        Returns why those get no turns that do not answer as their revisions do, by name.
        """
        body: dict[str, Any] = {"adapters": [adapter.to_json() for adapter in adapters]}
        if canaries:
            body["canaries"] = {model: canary.to_json() for model, canary in canaries.items()}
        served = self._call("PUT", f"/admin/engines/{boot}/adapters", body).get("adapters", ())
        return {one["model"]: str(one["reason"]) for one in served if one.get("reason")}

    def drain(self, boot: BootId) -> None:
        """By force: its process ends, whoever is pinned to it."""
        self._call("POST", f"/admin/engines/{boot}/drain?force=true")

    def forget(self, boot: BootId) -> None:
        self._call("DELETE", f"/admin/engines/{boot}?force=true")

    def engines(self) -> list[dict[str, Any]]:
        """As the API lists them: `boot`, `address`, `revision`, `state` and more."""
        return list(self._call("GET", "/admin/engines")["data"])

    def descriptor(self, revision: RevisionDigest) -> Descriptor:
        return Descriptor.from_json(self._call("GET", f"/admin/revisions/{revision}")["descriptor"])

    def retire_revision(self, revision: RevisionDigest, *, force: bool) -> Mapping[str, Any]:
        """`engines` that are gone, and `conversations` that are answered nowhere any more, if there are some."""
        query = "?force=true" if force else ""
        return self._call("POST", f"/admin/revisions/{revision}/retire{query}")

    def approve_contract(self, terms: Mapping[str, Any]) -> Contract:
        return Contract.from_json(self._call("POST", "/admin/contracts", terms)["terms"])

    def contracts(self) -> list[dict[str, Any]]:
        """As the API lists them: `contract`, `terms`, `revoked_at`."""
        return list(self._call("GET", "/admin/contracts")["data"])

    def contract(self, contract: ContractId) -> Contract:
        return Contract.from_json(self._call("GET", f"/admin/contracts/{contract}/terms"))

    def revoke_contract(self, contract: ContractId) -> None:
        self._call("DELETE", f"/admin/contracts/{contract}")

    def start_rollout(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._call("POST", "/admin/rollouts", wanted)

    def rollouts(self, alias: str | None = None) -> list[dict[str, Any]]:
        """The newest first."""
        query = urlencode({"alias": alias} if alias else {})
        return list(self._call("GET", f"/admin/rollouts?{query}")["data"])

    def rollout(self, rollout: str) -> Mapping[str, Any]:
        return self._call("GET", f"/admin/rollouts/{rollout}")

    def move_rollout(self, rollout: str, how: str, why: Mapping[str, Any]) -> Mapping[str, Any]:
        """`how` is pause, resume, abort or back; returns the rollout that is then to be watched."""
        return self._call("POST", f"/admin/rollouts/{rollout}/{how}", why)

    def rebuilds(self, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
        """The newest first; `wanted` are the API's own filters."""
        return list(self._call("GET", f"/admin/rebuilds?{urlencode(wanted)}")["data"])

    def rebuild(self, rebuild: str) -> Mapping[str, Any]:
        return self._call("GET", f"/admin/rebuilds/{rebuild}")

    def move_rebuild(self, rebuild: str, how: str, why: Mapping[str, Any]) -> Mapping[str, Any]:
        """`how` is cancel or retry."""
        return self._call("POST", f"/admin/rebuilds/{rebuild}/{how}", why)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        try:
            # Read each time, so that a new key needs no restart.
            headers = {"authorization": f"Bearer {self.key_file.read_text().strip()}"}
            answer = self.http.request(
                method, f"{self.api}{path}", json=body, headers=headers, timeout=TIMEOUT_S
            )
        except (httpx.TransportError, OSError) as error:
            raise Unavailable(f"the API at {self.api} cannot be reached: {error}") from error
        if answer.is_success:
            return _document(answer)
        raise _refusal(answer, path)


def _document(answer: httpx.Response) -> Mapping[str, Any]:
    try:
        document = answer.json() if answer.content else {}
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Unavailable(f"{answer.request.url} did not answer with a JSON object: is it the Everturn API?")
    return document


def _refusal(answer: httpx.Response, path: str) -> EverturnError:
    text = f"the API answered {answer.status_code} to {path}: {_message(answer)}"
    match answer.status_code:
        case 401:
            return Unauthenticated(text)
        case 403:
            return Forbidden(text)
        case 404:
            return NotFound("resource", path)
        case 409:
            return CanaryDiffers(text) if _code(answer) == "canary_differs" else Conflict(text)
        case status if status >= 500 or status == 429:  # noqa: PLR2004 as HTTP names them
            return Unavailable(text)
        case _:
            return InvalidInput(text)


def _code(answer: httpx.Response) -> str | None:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return None


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
