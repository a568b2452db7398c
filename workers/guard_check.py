"""Tries an engine's guard from outside, as a caller with bad intentions or old news would: believes what it sees, not what it is told."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.domain.errors import EverturnError
from service.domain.evidence import REVISION_HEADER, Evidence, KvRequest
from service.domain.revision import Descriptor
from workers.foreign_connectors import OURS, unprotected
from workers.kv_connector.versions import TESTED_VLLM, is_tested

TIMEOUT_S = 60.0
NOBODY = "rev_" + "0" * 64
PROBE_BLOCKS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    holds: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok' if self.holds else 'NO'} {self.check}: {self.detail}"


class Silent(Exception):
    """The engine gave no answer that says anything; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardCheck:
    http: httpx.Client
    address: str
    key: str | None = field(default=None, repr=False)
    """What the engine was given as --api-key."""

    def findings(self) -> Iterator[Finding]:
        """One for each check, in the order of the guard's lines; those that cannot be tried any more are failures too."""
        try:
            facts = self._facts()
        except Silent as silent:
            yield Finding(check="middleware", holds=False, detail=str(silent))
            return
        for check, tried in (
            ("identity", self._identity),
            ("wrong revision", self._wrong_claim),
            ("weights", self._weights_are_fixed),
            ("connector", lambda: _connector(facts)),
            ("other connectors", lambda: _others(facts)),
            ("vLLM version", lambda: _version(facts)),
            ("block hashes", lambda: self._block_hashes(facts)),
        ):
            try:
                holds, detail = tried()
            except Silent as silent:
                holds, detail = False, str(silent)
            yield Finding(check=check, holds=holds, detail=detail)

    def _facts(self) -> dict[str, Any]:
        answer = self._ask("GET", "/everturn/guard")
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise Silent(
                "is not active: requests for another revision are not turned away. Start the engine with "
                "workers.launcher, or give vLLM --middleware workers.kv_connector.middleware.EverturnMiddleware"
            )
        return _document(answer)

    def _identity(self) -> tuple[bool, str]:
        answer = self._ask("GET", "/everturn/identity")
        document = _document(answer)
        if not answer.is_success:
            return False, str(document.get("error", {}).get("message", answer.text[:200]))
        try:
            measured = Descriptor.from_json(document["descriptor"]).digest
        except (KeyError, EverturnError) as error:
            raise Silent(f"its descriptor cannot be read: {error}") from error
        if measured != document["revision"]:
            return False, f"claims {document['revision']}, but its descriptor is {measured}"
        return True, f"measured as {measured}, boot {document['boot']}"

    def _wrong_claim(self) -> tuple[bool, str]:
        answer = self._ask("POST", "/v1/completions", {}, headers={REVISION_HEADER: NOBODY})
        error = _document(answer).get("error") or {}
        if answer.status_code != httpx.codes.CONFLICT or error.get("type") != "revision_mismatch":
            return (
                False,
                f"a request for a revision that nobody is was answered {answer.status_code}, not 409",
            )
        return True, "409 before prefill, with both digests"

    def _weights_are_fixed(self) -> tuple[bool, str]:
        # Without a method to call, so that an engine which lets it through does nothing.
        answer = self._ask("POST", "/collective_rpc", {})
        error = _document(answer).get("error") or {}
        if answer.status_code != httpx.codes.CONFLICT or error.get("type") != "revision_fixed":
            return False, f"a call that may change them was answered {answer.status_code}, not 409"
        return True, "calls that may change them in place get 409"

    def _block_hashes(self, before: dict[str, Any]) -> tuple[bool, str]:
        """The same long prompt for one tenant twice, then for another: only the first may find it."""
        prompt = secrets.token_hex(self._block_size() * PROBE_BLOCKS)
        mine, other = (f"everturn-guard-{secrets.token_hex(8)}" for _ in range(2))
        own = [self._found(prompt, tenant) for tenant in (mine, mine)][1]
        foreign = self._found(prompt, other)
        if foreign:
            return False, f"another tenant found {foreign} tokens of the first one's KV"
        rooted = self._facts()["requests_rooted"] - before["requests_rooted"]
        if before["revision"] is None:
            return (
                False,
                "rooted in this boot alone, as the revision is unknown: KV is shared with no other engine",
            )
        if rooted < 3:  # noqa: PLR2004 as many as were sent
            return False, f"3 requests were sent, and {rooted} rooted"
        reuse = f"the same tenant finds {own} tokens again" if own else "the prefix cache is off"
        return True, f"rooted in revision and tenant: another tenant finds 0 tokens, {reuse}"

    def _block_size(self) -> int:
        document = _document(self._ask("GET", "/everturn/identity"))
        try:
            return int(document["descriptor"]["kv"]["block_size"])
        except KeyError:
            return 32

    def _found(self, prompt: str, tenant: str) -> int:
        attempt = f"guard-{secrets.token_hex(8)}"
        body = {
            "model": self._model(),
            "prompt": prompt,
            "max_tokens": 1,
            "kv_transfer_params": KvRequest(attempt=attempt, tenant=tenant).to_params(),
        }
        answer = self._ask("POST", "/v1/completions", body)
        if not answer.is_success:
            raise Silent(
                f"a probe of {len(prompt)} characters was answered {answer.status_code}: {answer.text[:200]}"
            )
        evidence = self._ask("GET", f"/everturn/attempts/{attempt}?wait_s=5")
        if not evidence.is_success:
            raise Silent("the connector has not seen the probe: it is not loaded")
        return Evidence.from_json(_document(evidence)).local_tokens

    def _model(self) -> str:
        models = _document(self._ask("GET", "/v1/models")).get("data") or []
        if not models:
            raise Silent("it serves no model")
        return str(models[0]["id"])

    def _ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        authorization = {"authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            answer = self.http.request(
                method,
                f"{self.address}{path}",
                json=body,
                headers=authorization | (headers or {}),
                timeout=TIMEOUT_S,
            )
        except httpx.HTTPError as error:
            raise Silent(
                f"{self.address} does not answer ({error!r}): is it the engine's own address?"
            ) from error
        except httpx.InvalidURL as error:
            raise Silent(f"'{self.address}' is no address: give http://HOST:PORT of an engine") from error
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            known = "takes another" if self.key else "asks for its"
            raise Silent(f"the engine {known} --api-key: give --engine-key-file")
        return answer


def _connector(facts: dict[str, Any]) -> tuple[bool, str]:
    names = facts["connectors"]
    if OURS not in names:
        return False, f"{OURS} is not loaded (found: {', '.join(names) or 'none'})"
    if names[0] != OURS:
        return (
            False,
            f"{OURS} comes after {names[0]}, which sees requests before their block hashes are rooted: put it first",
        )
    return True, f"{' before '.join(names)}"


def _others(facts: dict[str, Any]) -> tuple[bool, str]:
    names = [name for name in facts["connectors"] if name != OURS]
    if holes := unprotected(names):
        return False, "; ".join(holes)
    return True, f"{', '.join(names)} by rooted block hashes" if names else "none"


def _version(facts: dict[str, Any]) -> tuple[bool, str]:
    version = str(facts["vllm"])
    if not is_tested(version):
        return (
            False,
            f"{version} is untested (tested: {', '.join(TESTED_VLLM)}), so the engine reads and saves no KV",
        )
    return True, f"{version} is tested"


def _document(answer: httpx.Response) -> dict[str, Any]:
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Silent(f"{answer.request.url} answered {answer.status_code} without a JSON object")
    return document
