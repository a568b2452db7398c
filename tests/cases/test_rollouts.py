"""R5: a revision is found to be bad after the fact; R1 to R4, R6 and R7 stand where their parts are: `grep -rn "test_r[1-7]_" tests`."""

from pathlib import Path

import pytest

from stack.cli import main
from tests.domain.descriptors import V12, V13
from tests.workers.kv_connector.stored import conversation, put
from workers.kv_connector.catalog import Catalog
from workers.kv_connector.store import BlockStore


@pytest.mark.parametrize(
    ("choice", "left"),
    [
        (["--revision", V12.digest], {"kv_new13000"}),
        (["--boot", "boot_a"], {"kv_new13000"}),
        (["--since", "1970-01-01T00:00:02"], {"kv_old12000"}),
        (["--until", "1970-01-01T00:00:02"], {"kv_new12000", "kv_new13000"}),
    ],
    ids=["revision", "boot", "since", "until"],
)
def test_r5_one_command_puts_all_kv_of_a_revision_a_boot_or_a_time_aside(
    block_store: BlockStore, tmp_path: Path, choice: list[str], left: set[str]
) -> None:
    """The second conversation shares blocks with the first, so what its engine made goes with that."""
    put(block_store, "kv_old12000", conversation(1, shared=2), boot="boot_a", created_ms=1_000)
    put(block_store, "kv_new12000", conversation(2, shared=2), boot="boot_b", created_ms=2_000)
    put(block_store, "kv_new13000", conversation(1, shared=2), boot="boot_c", created_ms=3_000, own=V13)
    given = ["--data", str(tmp_path), "kv", "quarantine", "--store", block_store.address, *choice]
    assert main(given) == 0
    contents = Catalog(block_store).look()
    assert {listed.artifact for listed in contents.artifacts} == left
    assert contents.quarantined
