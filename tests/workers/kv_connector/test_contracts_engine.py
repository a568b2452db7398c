"""Two real engines whose revisions differ in a harmless toggle: KV crosses under a contract, and not without one."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain.artifact import RefusalReason
from service.domain.contract import Contract, approve
from service.domain.revision import Descriptor
from tests.engines.real import EngineHall, RealEngine, new_handle
from tests.workers.kv_connector.prompts import prompt

pytestmark = pytest.mark.engine

HOUR_MS = 3_600_000
TOGGLE = "VLLM_MARLIN_USE_ATOMIC_ADD"
"""Changes nothing on this machine, and is part of the identity."""


@pytest.fixture(scope="module")
def contracts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("contracts")


@pytest.fixture(scope="module")
def toggled(engine_hall: EngineHall, tiny_v12: Path, kv_store: Path, contracts: Path) -> Iterator[RealEngine]:
    engine = engine_hall.start(tiny_v12, kv_store, env={TOGGLE: "1"}, contracts=contracts)
    yield engine
    engine_hall.stop(engine)


def give(folder: Path, reader: RealEngine, producer: RealEngine, *, ends_ms: int) -> str:
    own, theirs = (Descriptor.from_json(e.identity["descriptor"]) for e in (reader, producer))
    contract: Contract = approve(
        reader=own,
        producer=theirs,
        waived=[f"environment.{TOGGLE}"],
        reason="the toggle concerns another platform",
        by="ada",
        now_ms=ends_ms - HOUR_MS,
        ends_ms=ends_ms,
    )
    (folder / f"{contract.id}.json").write_text(json.dumps(contract.to_json()))
    return contract.id


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_under_a_contract_the_kv_is_read_equals_cold_and_leaves_no_trace(
    v12_engine: RealEngine, toggled: RealEngine, contracts: Path
) -> None:
    ids, handle = prompt("contract"), new_handle()
    assert v12_engine.generate(ids, publish=handle, max_tokens=1).known.published is not None
    contract = give(contracts, toggled, v12_engine, ends_ms=now_ms() + HOUR_MS)
    read = toggled.generate(ids, offer=handle, contract=contract, publish=new_handle())
    cold = toggled.cold(ids)
    assert read.known.loaded is not None
    assert (read.known.loaded.contract, read.known.loaded.revision) == (contract, v12_engine.revision)
    assert (read.tokens, read.logprobs) == (cold.tokens, cold.logprobs)
    assert read.known.published is None
    assert "under a contract" in str(read.known.publish_failure)
    again = toggled.generate(ids, offer=handle, contract=contract)
    assert (again.known.local_tokens, again.known.loaded is not None) == (0, True), "each use is a use"
    plain = toggled.generate(ids)
    assert (plain.known.local_tokens, plain.known.loaded) == (0, None)
    assert toggled.generate(ids).known.local_tokens > 0, "the prefix cache is on"


def test_without_one_or_past_its_end_the_kv_is_refused(
    v12_engine: RealEngine, toggled: RealEngine, contracts: Path
) -> None:
    ids, handle = prompt("no contract"), new_handle()
    v12_engine.generate(ids, publish=handle, max_tokens=1)
    ended = give(contracts, toggled, v12_engine, ends_ms=now_ms())
    reasons = []
    for contract in (None, ended, "ctr_" + "0" * 64, "../x", 7):
        reply = toggled.generate(ids, offer=handle, contract=contract)
        assert reply.known.refusal is not None
        assert reply.known.loaded is None
        reasons.append(reply.known.refusal.reason)
    assert reasons == [
        RefusalReason.REVISION_MISMATCH,
        RefusalReason.CONTRACT_EXPIRED,
        *[RefusalReason.CONTRACT_INVALID] * 3,
    ]
    assert toggled.is_healthy()
