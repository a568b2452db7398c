"""An adapter as an engine serves it: a name that requests call it by, and with the base the revision they are answered under."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from re import fullmatch
from typing import Any

from service.domain.errors import InvalidInput
from service.domain.revision import Descriptor, RevisionDigest, parse_digest

NO_ADAPTER = "none"
ADAPTER_FORM = r"[0-9a-f]{64}"
LONGEST_NAME = 256
LONGEST_REASON = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAdapter:
    model: str
    """What a request to the engine calls it; evidence of nothing."""
    adapter: str
    """SHA-256 over the bytes of its config and weights, hex."""
    revision: RevisionDigest

    def to_json(self) -> dict[str, str]:
        return {"model": self.model, "adapter": self.adapter, "revision": self.revision}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownAdapter:
    """The engine answers under this name with bytes that nobody vouches for: no turn goes there."""

    model: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"model": self.model, "reason": self.reason}


Adapter = ServedAdapter | UnknownAdapter


def effective(base: Descriptor, adapter: str) -> Descriptor:
    """What a request with this adapter is computed under; the base itself for `NO_ADAPTER`."""
    return base if adapter == base.kv.adapter else replace(base, kv=replace(base.kv, adapter=adapter))


def is_name(model: str) -> bool:
    """Whether it can stand in a request, a row and a log line."""
    return 0 < len(model) <= LONGEST_NAME and model.isprintable()


def in_one_line(text: str) -> str:
    """A reason, as a row, a log and a table can hold it."""
    return "".join(c if c.isprintable() else " " for c in text)[:LONGEST_REASON]


def parse_adapters(documents: object, param: str = "adapters") -> tuple[Adapter, ...]:
    """Strict; in the order given.

    Raises:
        InvalidInput: naming the field.
    """
    if not isinstance(documents, list):
        raise InvalidInput(f"'{param}' must be a list.", param)
    adapters = tuple(_parsed(document, f"{param}[{at}]") for at, document in enumerate(documents))
    models = [adapter.model for adapter in adapters]
    for at, model in enumerate(models):
        if model in models[:at]:
            raise InvalidInput(f"'{param}[{at}].model' is there twice: '{model}'.", f"{param}[{at}].model")
    return adapters


def _parsed(document: object, param: str) -> Adapter:
    fields = set(document) if isinstance(document, dict) else set()
    if not isinstance(document, dict) or fields not in (
        {"model", "adapter", "revision"},
        {"model", "reason"},
    ):
        raise InvalidInput(
            f"'{param}' must be an object with 'model', 'adapter' and 'revision', or with 'model' and 'reason'.",
            param,
        )
    model = _text(document, "model", param)
    if not is_name(model):
        raise InvalidInput(
            f"'{param}.model' must be 1 to {LONGEST_NAME} printable characters.", f"{param}.model"
        )
    if "reason" in document:
        return UnknownAdapter(model=model, reason=in_one_line(_text(document, "reason", param)))
    adapter = _text(document, "adapter", param)
    if not fullmatch(ADAPTER_FORM, adapter):
        raise InvalidInput(f"'{param}.adapter' must be 64 hex digits.", f"{param}.adapter")
    revision = parse_digest(_text(document, "revision", param), f"{param}.revision")
    return ServedAdapter(model=model, adapter=adapter, revision=revision)


def _text(document: Mapping[str, Any], name: str, param: str) -> str:
    value = document[name]
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"'{param}.{name}' must be a non-empty string.", f"{param}.{name}")
    return value
