"""`everturn contract` against the running API: approved, listed, given to an engine, revoked; and refused in one line."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from stack.cli import main
from tests.api.stack import running_stack
from tests.api.test_contracts import NEW, OLD
from workers.kv_connector.contract_folder import ContractFolder

LATER = (datetime.now(UTC) + timedelta(hours=1)).isoformat()


@pytest.fixture
def api(database: str, tmp_path: Path) -> Iterator[list[str]]:
    """The arguments that every command needs, of an API that knows two revisions."""
    key = tmp_path / "operator.key"
    with running_stack(database) as stack:
        key.write_text(stack.secrets.operator)
        for known in (OLD, NEW):
            stack.admin.post("/admin/revisions", json={"descriptor": known.to_json()})
        yield ["--api", stack.url, "--key-file", str(key)]


def approval(*more: str, until: str = LATER) -> list[str]:
    return ["approve", NEW.digest, OLD.digest, "--reason", "tested", "--until", until, *more]


def contract(api: list[str], *arguments: str) -> int:
    return main(["contract", *arguments, *api])


def test_a_contract_goes_from_approval_to_an_engine_and_to_its_end(
    api: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert contract(api, *approval("--waive", "engine_version", "--by", "ada")) == 0
    approved = capsys.readouterr().out.splitlines()[0]
    assert contract(api, "list") == 0
    listed = capsys.readouterr().out
    assert f"{approved}  in force until" in listed
    assert f"{NEW.digest} reads {OLD.digest}" in listed
    assert "waived: engine_version; approved by ada: tested" in listed
    assert contract(api, "give", approved, str(tmp_path)) == 0
    assert getattr(ContractFolder(tmp_path).find(approved), "id", None) == approved
    capsys.readouterr()
    assert contract(api, "revoke", approved) == 0
    assert f"remove {approved}.json" in capsys.readouterr().out
    contract(api, "list")
    assert f"{approved}  revoked" in capsys.readouterr().out


def test_what_cannot_be_is_refused_in_one_line(
    api: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = "ctr_" + "0" * 64
    for arguments, words in (
        (approval(), "also differ in engine_version"),
        (approval("--waive", "engine_version", "--waive", "weights"), "never be waived"),
        (approval("--waive", "engine_version", until="soon"), "ends_at"),
        (["give", nothing, str(tmp_path)], nothing),
        (["give", nothing, str(tmp_path / "no")], "is no folder"),
        (["give", "latest", str(tmp_path)], "64 hex digits"),
        (["revoke", nothing], nothing),
    ):
        assert contract(api, *arguments) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert words in error
