"""A revision: the immutable serving identity of an engine, and the one function that makes its digest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from re import fullmatch
from typing import Any, NewType, Self

from service.domain import canonical
from service.domain.canonical import Scalar
from service.domain.errors import InvalidDescriptor

RevisionDigest = NewType("RevisionDigest", str)

Settings = Mapping[str, Scalar]
"""Flat: nested configuration is joined with dots, as in `rope_parameters.rope_theta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvIdentity:
    """All that the bytes of a KV block depend on, as resolved by the engine; `auto` is never a value."""

    weights: str
    quantization: str
    architecture: Settings
    position: Settings
    adapter: str
    compute_dtype: str
    kv_dtype: str
    kv_scales: str
    attention_backend: str
    attention_isa: str
    engine: str
    engine_version: str
    model_runner: str
    block_size: int
    kv_layout: Settings
    shards: Settings
    draft_model: str
    environment: Settings
    compile_mode: str
    serializer_abi: int


STRIPPED = "stripped"
"""The history policy of a template that leaves reasoning out of earlier answers: a prompt need not begin with the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextIdentity:
    """All that decides whether token ids may be carried over to another revision."""

    tokenizer: str
    tokenizer_libraries: Settings
    golden_tokens: str
    chat_template: str
    history_policy: str
    generation_defaults: Settings


NEVER_WAIVED = frozenset(
    {
        "weights",
        "quantization",
        "architecture",
        "position",
        "adapter",
        "compute_dtype",
        "kv_dtype",
        "kv_scales",
        "block_size",
        "kv_layout",
        "shards",
    }
)
"""KV identity fields that no compatibility contract may bridge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    kv: KvIdentity
    text: TextIdentity

    @property
    def digest(self) -> RevisionDigest:
        return RevisionDigest("rev_" + canonical.digest(self.to_json()))

    def to_json(self) -> dict[str, dict[str, Any]]:
        return {"kv": _part_to_json(self.kv), "text": _part_to_json(self.text)}

    def flat(self) -> dict[str, Scalar]:
        """Every field by its dotted name, in declaration order."""
        return dict(_flat(self))

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Strict: a missing, unknown, empty, floating or wrongly typed field names itself.

        Raises:
            InvalidDescriptor: with the field as `param`.
        """
        if not isinstance(document, dict) or set(document) != {"kv", "text"}:
            raise InvalidDescriptor("A descriptor is an object with exactly 'kv' and 'text'.", "descriptor")
        return cls(
            kv=KvIdentity(**_checked(KvIdentity, "kv", document["kv"])),
            text=TextIdentity(**_checked(TextIdentity, "text", document["text"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    field: str
    ours: Scalar
    theirs: Scalar

    def __str__(self) -> str:
        return f"{self.field}: {shown(self.ours)} here, {shown(self.theirs)} there"


ABSENT = "(absent)"


def differences(ours: Descriptor, theirs: Descriptor) -> tuple[Difference, ...]:
    """The fields that differ, dotted, in declaration order; empty exactly when the digests are equal."""
    return flat_differences(ours.flat(), theirs.flat())


def flat_differences(left: Settings, right: Settings) -> tuple[Difference, ...]:
    """As `differences`, of fields by their dotted names."""
    return tuple(
        Difference(field=name, ours=left.get(name, ABSENT), theirs=right.get(name, ABSENT))
        for name in [*left, *(n for n in right if n not in left)]
        if name not in left or name not in right or _typed(left[name]) != _typed(right[name])
    )


def differing_fields(ours: Descriptor, theirs: Descriptor) -> tuple[str, ...]:
    return tuple(d.field for d in differences(ours, theirs))


def same_text(ours: Descriptor, theirs: Descriptor) -> bool:
    """Whether token ids made under one may be carried to the other."""
    return canonical.encode(_part_to_json(ours.text)) == canonical.encode(_part_to_json(theirs.text))


def parse_digest(text: str, param: str = "revision") -> RevisionDigest:
    if not fullmatch(r"rev_[0-9a-f]{64}", text):
        raise InvalidDescriptor(
            f"'{param}' must be a revision digest: 'rev_' and 64 hex digits. "
            "Names, branches, tags and 'latest' move, and identify nothing.",
            param,
        )
    return RevisionDigest(text)


_FLOATING = frozenset({"auto", "latest", "main", "master", "head", "unknown"})


def _checked(part: type[KvIdentity | TextIdentity], prefix: str, values: object) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise InvalidDescriptor(f"'{prefix}' must be an object.", prefix)
    wanted = {f.name: f.type for f in fields(part)}
    for name in values:
        if name not in wanted:
            raise InvalidDescriptor(f"'{prefix}.{name}' is not a field of a descriptor.", f"{prefix}.{name}")
    for name, kind in wanted.items():
        if name not in values:
            raise InvalidDescriptor(
                f"'{prefix}.{name}' is missing: absent is not a value.", f"{prefix}.{name}"
            )
        _check_value(f"{prefix}.{name}", kind, values[name])
    return dict(values)


def _check_value(name: str, kind: object, value: object) -> None:
    if kind is Settings:
        if not isinstance(value, Mapping):
            raise InvalidDescriptor(f"'{name}' must be an object of resolved settings.", name)
        for key, item in value.items():
            if not isinstance(item, str | int | float | bool | None):
                raise InvalidDescriptor(f"'{name}.{key}' must be a string, number, boolean or null.", name)
            _check_resolved(f"{name}.{key}", item)
    elif kind is int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidDescriptor(f"'{name}' must be a whole number.", name)
    else:
        if not isinstance(value, str) or not value:
            raise InvalidDescriptor(f"'{name}' must be a non-empty string; write 'none' for none.", name)
        _check_resolved(name, value)


def _check_resolved(name: str, value: object) -> None:
    if isinstance(value, str) and value.lower() in _FLOATING:
        raise InvalidDescriptor(
            f"'{name}' is '{value}', which is not a resolved value. Register what the engine resolved it to.",
            name,
        )
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        raise InvalidDescriptor(f"'{name}' must be a finite number.", name)


def _part_to_json(part: KvIdentity | TextIdentity) -> dict[str, Any]:
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _flat(descriptor: Descriptor) -> Iterator[tuple[str, Scalar]]:
    for values in descriptor.to_json().values():
        for name, value in values.items():
            if isinstance(value, dict):
                yield from ((f"{name}.{key}", value[key]) for key in sorted(value))
            else:
                yield name, value


def _typed(value: Scalar) -> bytes:
    return canonical.encode(value)


def shown(value: Scalar) -> str:
    """For a person: of a digest, enough to tell it from others."""
    text = str(value)
    return f"{text[:16]}…" if fullmatch(r"[0-9a-f]{40,}", text) else text
