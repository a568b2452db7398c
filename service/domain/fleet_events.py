"""The facts of engines, of the adapters that they serve, of compatibility contracts and tenants, each on a stream of the fleet."""

from dataclasses import dataclass
from typing import ClassVar

from service.domain.artifact import BootId
from service.domain.contract import Contract, ContractId
from service.domain.revision import RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRegistered:
    name: ClassVar = "engine.registered"
    boot: BootId
    revision: RevisionDigest
    address: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterServed:
    """The engine answers requests for `model` under `revision`, which is its base with this adapter in it."""

    name: ClassVar = "adapter.served"
    boot: BootId
    model: str
    adapter: str
    """Digest of its bytes."""
    revision: RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWithdrawn:
    """The engine goes on without it."""

    name: ClassVar = "adapter.withdrawn"
    boot: BootId
    model: str
    revision: RevisionDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractApproved:
    name: ClassVar = "contract.approved"
    contract: ContractId
    terms: Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractRevoked:
    name: ClassVar = "contract.revoked"
    contract: ContractId
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicySet:
    """How the tenant's conversations meet an upgrade where nothing more specific says so; None: nothing said."""

    name: ClassVar = "tenant.policy_set"
    tenant: str
    on_upgrade: str | None
    previous: str | None
    by: str


FleetFact = (
    EngineRegistered | AdapterServed | AdapterWithdrawn | ContractApproved | ContractRevoked | TenantPolicySet
)
