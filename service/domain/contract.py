"""Compatibility contracts: the one way in which a revision may read another's KV, field by field, until a day."""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from re import fullmatch
from typing import Any, NewType, Self

from service.domain import canonical
from service.domain.errors import InvalidInput
from service.domain.revision import (
    NEVER_WAIVED,
    Descriptor,
    Difference,
    KvIdentity,
    RevisionDigest,
    TextIdentity,
    differences,
    parse_digest,
)

ContractId = NewType("ContractId", str)

NEVER_BRIDGED = NEVER_WAIVED | {"attention_backend", "serializer_abi"}
"""Backend and serializer decide how a block's bytes are laid out, in shapes that may well be equal."""

FIELDS = frozenset(f.name for part in (KvIdentity, TextIdentity) for f in fields(part))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """`reader` may read KV made under `producer`, although `waived` differ, until `ends_ms`."""

    reader: RevisionDigest
    producer: RevisionDigest
    waived: tuple[str, ...]
    """As a comparison of the two names them: dotted, such as `environment.VLLM_USE_X`."""
    reason: str
    approved_by: str
    approved_ms: int
    ends_ms: int

    @property
    def id(self) -> ContractId:
        """Of its content: who names a contract names every term of it."""
        return ContractId("ctr_" + canonical.digest(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"waived": list(self.waived)}

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Strict. Raises: InvalidInput: naming the field."""
        names = {f.name for f in fields(cls)}
        if not isinstance(document, dict) or set(document) != names:
            raise InvalidInput(
                f"A contract is an object with exactly {', '.join(sorted(names))}.", "contract"
            )
        for name in ("reader", "producer", "reason", "approved_by"):
            if not isinstance(document[name], str) or not document[name]:
                raise InvalidInput(f"'{name}' must be a non-empty string.", name)
        for name in ("approved_ms", "ends_ms"):
            if type(document[name]) is not int or document[name] < 0:
                raise InvalidInput(f"'{name}' must be whole milliseconds since 1970.", name)
        waived = document["waived"]
        if not isinstance(waived, list) or not all(isinstance(name, str) for name in waived):
            raise InvalidInput("'waived' must be a list of field names.", "waived")
        parse_digest(document["reader"], "reader")
        parse_digest(document["producer"], "producer")
        return cls(**document | {"waived": tuple(waived)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """Why a contract does not let this KV be read."""

    detail: str
    expired: bool = False


def approve(
    *,
    reader: Descriptor,
    producer: Descriptor,
    waived: Collection[str],
    reason: str,
    by: str,
    now_ms: int,
    ends_ms: int,
) -> Contract:
    """Raises: InvalidInput: naming the field that cannot be waived, or that was forgotten, or the end."""
    contract = Contract(
        reader=reader.digest,
        producer=producer.digest,
        waived=tuple(sorted(set(waived))),
        reason=reason,
        approved_by=by,
        approved_ms=now_ms,
        ends_ms=ends_ms,
    )
    if reader.digest == producer.digest:
        raise InvalidInput(
            "'reader' and 'producer' are one revision: it reads its own KV anyway.", "producer"
        )
    for name in contract.waived:
        if _top(name) not in FIELDS:
            raise InvalidInput(f"'waived' names '{name}', which is no field of a revision.", "waived")
    if never := never_bridged(contract, differences(reader, producer)):
        raise InvalidInput(
            f"{', '.join(never)}: fields that carry weights, adapter, position, dtype, layout or shards can "
            "never be waived. Let the history be rebuilt on the new revision.",
            "waived",
            "never_waived",
        )
    if forgotten := _not_waived(contract, differences(reader, producer)):
        raise InvalidInput(
            f"The two revisions also differ in {', '.join(forgotten)}: name every one of them in 'waived', or none.",
            "waived",
        )
    if ends_ms <= now_ms:
        raise InvalidInput(
            "The end must lie in the future: a contract that has ended permits nothing.", "ends_at"
        )
    return contract


def breach_of(contract: Contract, *, own: Descriptor, theirs: Descriptor, now_ms: int) -> Breach | None:
    """The consumer's own check, from what it measured of itself and what stands beside the KV; None permits.

    Args:
        contract: as the reader's operator gave it.
        own: the reading engine's, measured.
        theirs: that of the artifact's manifest.
        now_ms: the consumer's clock, epoch milliseconds.
    """
    if contract.reader != own.digest:
        return Breach(detail=f"it lets {contract.reader} read, and this engine is {own.digest}")
    if contract.producer != theirs.digest:
        return Breach(detail=f"it is about KV of {contract.producer}, and this is of {theirs.digest}")
    differing = differences(own, theirs)
    if never := never_bridged(contract, differing):
        return Breach(detail=f"{', '.join(never)} can never be waived")
    if forgotten := _not_waived(contract, differing):
        return Breach(detail=f"it does not waive {', '.join(forgotten)}")
    if now_ms >= contract.ends_ms:
        return Breach(detail=f"it ended at {contract.ends_ms}", expired=True)
    return None


def never_bridged(contract: Contract, differing: Iterable[Difference]) -> tuple[str, ...]:
    """Of what differs, and of what the contract would waive, that which no contract may bridge."""
    waived = [name for name in contract.waived if _top(name) in NEVER_BRIDGED]
    differ = [d.field for d in differing if _top(d.field) in NEVER_BRIDGED or _packs_otherwise(d)]
    return tuple(dict.fromkeys([*differ, *waived]))


def parse_contract_id(text: object) -> ContractId:
    """Raises: InvalidInput: also for anything that could leave a folder."""
    if isinstance(text, str) and fullmatch(r"ctr_[0-9a-f]{64}", text):
        return ContractId(text)
    raise InvalidInput("A contract's id is 'ctr_' and 64 hex digits.", "contract")


def _not_waived(contract: Contract, differing: Iterable[Difference]) -> tuple[str, ...]:
    return tuple(d.field for d in differing if d.field not in contract.waived)


def _packs_otherwise(difference: Difference) -> bool:
    """Another machine, or AMX on one side only: the same shape then holds its values in another order."""
    if difference.field != "attention_isa":
        return False
    ours, theirs = str(difference.ours).split(), str(difference.theirs).split()
    return ours[0] != theirs[0] or ("amx" in ours) != ("amx" in theirs)


def _top(field: str) -> str:
    return field.partition(".")[0]
