"""`everturn guard check` on engines that are protected, half protected, and not at all."""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from stack.cli import main
from stack.ports import find_free_port
from tests.engines.real import EngineHall, RealEngine
from tests.workers import fake_api
from tests.workers.fake_api import FakeApi
from workers.foreign_connectors import KNOWN, OURS
from workers.guard_check import Finding, _connector, _others, _version

FACTORY = "distributed/kv_transfer/kv_connector/factory.py"
PAGE = (Path(__file__).parents[3] / "docs/identity-and-guard.md").read_text()
CHECKS = [
    *("identity", "wrong revision", "weights", "connector"),
    *("other connectors", "vLLM version", "block hashes"),
]


def failing(printed: str) -> dict[str, str]:
    """The lines that say NO, by their check."""
    lines = [line.strip() for line in printed.splitlines() if line.startswith("  NO ")]
    return dict(line.removeprefix("NO ").split(": ", 1) for line in lines)


@pytest.mark.engine
def test_an_engine_with_everything_in_place_is_protected(
    v12_engine: RealEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["guard", "check", v12_engine.url]) == 0
    printed = capsys.readouterr().out
    assert [line.split(":")[0].removeprefix("  ok ").strip() for line in printed.splitlines()[1:-1]] == CHECKS
    assert v12_engine.revision in printed
    assert "another tenant finds 0 tokens, the same tenant finds 160 tokens again" in printed
    assert printed.splitlines()[-1] == "protected"
    [shown] = re.findall(r"^\$ everturn guard check .*?$\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    of_this_engine = ("engine at", "  ok identity", "  ok connector", "  ok other connectors")
    for line in shown.splitlines():
        assert line.startswith(of_this_engine) or line in printed.splitlines()
    assert len(shown.splitlines()) == len(printed.splitlines())


@pytest.mark.engine
def test_an_engine_without_our_connector_is_not(
    engine_hall: EngineHall, tiny_v12: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "shared")},
    }
    engine = engine_hall.start(tiny_v12, tmp_path / "kv", instead=example)
    assert main(["guard", "check", engine.url]) == 1
    found = failing(capsys.readouterr().out)
    assert set(found) == {"identity", "connector", "other connectors", "block hashes"}
    assert found["connector"] == "EverturnConnector is not loaded (found: ExampleConnector)"
    engine_hall.stop(engine)


@pytest.mark.engine
def test_an_engine_whose_middleware_lets_every_claim_pass_is_not(
    engine_hall: EngineHall, tiny_v12: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_hall.start(tiny_v12, tmp_path / "kv", middleware="NoMiddleware")
    assert main(["guard", "check", engine.url]) == 1
    assert set(failing(capsys.readouterr().out)) == {"wrong revision"}
    engine_hall.stop(engine)


@pytest.mark.engine
def test_an_engine_whose_block_hashes_are_not_rooted_is_not(
    engine_hall: EngineHall, tiny_v12: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_hall.start(tiny_v12, tmp_path / "kv", connector="NoRoot")
    assert main(["guard", "check", engine.url]) == 1
    found = failing(capsys.readouterr().out)
    assert found["block hashes"] == "another tenant found 160 tokens of the first one's KV"
    engine_hall.stop(engine)


@pytest.mark.engine
def test_an_engine_that_cannot_measure_itself_is_not(
    engine_hall: EngineHall, tiny_v12: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_hall.start(tiny_v12, tmp_path / "kv", "--load-format", "dummy")
    assert main(["guard", "check", engine.url]) == 1
    found = failing(capsys.readouterr().out)
    assert set(found) == {"identity", "block hashes"}
    assert "--load-format dummy" in found["identity"]
    assert "this boot alone" in found["block hashes"]
    engine_hall.stop(engine)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    (tmp_path / "key").write_text("secret")
    with fake_api.serving(find_free_port()) as serving:
        yield serving


def test_a_server_without_our_middleware_is_not(api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "check", api.url]) == 1
    assert failing(capsys.readouterr().out)["middleware"].startswith("is not active")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "no address"])
def test_what_does_not_answer_is_not(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "check", url]) == 1
    assert set(failing(capsys.readouterr().out)) == {"middleware"}


def test_an_engine_that_is_not_registered_is_named_with_those_that_are(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.engines = [{"boot": "boot_a", "address": api.url}]
    options = ["--api", api.url, "--key-file", str(tmp_path / "key")]
    assert main(["guard", "check", "--engine", "boot_b", *options]) == 1
    assert "registered: boot_a" in capsys.readouterr().err
    assert main(["guard", "check", "--engine", "all", *options]) == 1
    assert "boot_a at" in capsys.readouterr().out


def test_a_connector_before_ours_is_a_hole() -> None:
    assert _connector({"connectors": [OURS, "OffloadingConnector"]})[0]
    holds, detail = _connector({"connectors": ["OffloadingConnector", OURS]})
    assert not holds
    assert "put it first" in detail


@pytest.mark.parametrize(
    ("behind", "words"),
    [
        ("NixlConnector", "block number"),
        ("MooncakeConnector", "pair engines of one revision only"),
        ("LMCacheConnectorV1", "by tokens alone"),
        ("ExampleConnector", "take OffloadingConnector"),
        ("SomebodysConnector", "nobody here knows"),
    ],
)
def test_a_connector_that_block_hashes_do_not_protect_is_named_with_what_to_do(
    behind: str, words: str
) -> None:
    holds, detail = _others({"connectors": [OURS, "OffloadingConnector", behind]})
    assert not holds
    assert detail.startswith(f"{behind} is NOT protected: ")
    assert words in detail
    assert "OffloadingConnector is NOT" not in detail


def test_connectors_that_go_by_block_hashes_are_protected() -> None:
    assert _others({"connectors": [OURS, "OffloadingConnector", "MooncakeStoreConnector"]})[0]
    assert _others({"connectors": [OURS]}) == (True, "none")


def test_every_connector_that_vllm_registers_is_known_or_called_unknown() -> None:
    """A later vLLM may bring one: then this fails, and someone reads how it names KV."""
    vllm = find_spec("vllm")
    assert vllm is not None
    assert vllm.submodule_search_locations is not None
    source = (Path(vllm.submodule_search_locations[0]) / FACTORY).read_text()
    registered = set(re.findall(r'register_connector\(\s*"(\w+)"', source))
    assert registered - {"MultiConnector"} - set(KNOWN) == {
        "ExampleHiddenStatesConnector",
        "HiSparseConnector",
        "LMCacheMPConnector",
    }


@pytest.mark.engine
def test_an_engine_with_a_key_is_checked_with_it(
    engine_hall: EngineHall, tiny_v12: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = engine_hall.start(tiny_v12, tmp_path / "kv", env={"VLLM_API_KEY": "s3cret"})
    (tmp_path / "key").write_text("s3cret\n")
    (tmp_path / "wrong").write_text("another")
    assert main(["guard", "check", engine.url, "--engine-key-file", str(tmp_path / "key")]) == 0
    assert "s3cret" not in capsys.readouterr().out
    assert main(["guard", "check", engine.url]) == 1
    assert "asks for its --api-key: give --engine-key-file" in capsys.readouterr().out
    assert main(["guard", "check", engine.url, "--engine-key-file", str(tmp_path / "wrong")]) == 1
    assert "takes another --api-key" in capsys.readouterr().out
    engine_hall.stop(engine)


@pytest.mark.parametrize("content", [None, b"", b" \n", b"two keys", b"\xff"])
def test_a_key_file_that_holds_no_key_is_refused(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    assert main(["guard", "check", "http://127.0.0.1:1", "--engine-key-file", str(tmp_path / "key")]) == 1
    assert "--engine-key-file" in capsys.readouterr().err


def test_an_untested_vllm_is_not_protected() -> None:
    assert _version({"vllm": "0.32.0+cpu"})[0]
    assert not _version({"vllm": "0.33.0"})[0]


def test_a_finding_is_one_line() -> None:
    assert str(Finding(check="identity", holds=False, detail="unknown")) == "NO identity: unknown"
