"""What `everturn revision` prints and how it ends, on descriptors from files, from an API, and measured from checkpoints."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.domain.revision import Descriptor
from stack.cli import main
from stack.ports import find_free_port
from tests.domain.descriptors import V12, V13, with_kv
from tests.engines.checkpoints import CHATML, TinyModel, flip_one_weight_bit
from tests.engines.real import RealEngine
from tests.workers import fake_api
from tests.workers.fake_api import FakeApi


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with fake_api.serving(find_free_port()) as serving:
        yield serving


@pytest.fixture
def home(tmp_path: Path, api: FakeApi, capsys: pytest.CaptureFixture[str]) -> "Home":
    (tmp_path / "key").write_text("secret")
    return Home(tmp_path, api, capsys)


class Home:
    def __init__(self, folder: Path, api: FakeApi, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.api = api
        self._capsys = capsys

    def register(self, descriptor: Descriptor) -> str:
        self.api.revisions[descriptor.digest] = descriptor.to_json()
        return descriptor.digest

    def everturn(self, *arguments: object) -> tuple[int, str]:
        """Exit status, and all that was printed."""
        given = ["--data", str(self.folder), "revision", *map(str, arguments)]
        status = main([*given, "--api", self.api.url, "--key-file", str(self.folder / "key")])
        printed = self._capsys.readouterr()
        return status, printed.out + printed.err


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_a_registered_revision_is_shown_field_by_field(home: Home) -> None:
    status, printed = home.everturn("show", home.register(V12))
    assert status == 0
    lines = printed.splitlines()
    assert lines[0] == V12.digest
    assert [line.split() for line in lines if "block_size" in line] == [["block_size", "4"]]
    assert [line.split()[1] for line in lines if "position.rope" in line] == ["100000.0"]


def test_a_revision_in_a_file_is_shown_whole_as_json(home: Home) -> None:
    file = write(home.folder / "v12.json", V12.to_json())
    status, printed = home.everturn("show", file, "--json")
    assert status == 0
    assert json.loads(printed)["weights"] == V12.kv.weights


def test_a_difference_names_the_field_and_both_values(home: Home) -> None:
    other = with_kv(V13, kv_dtype="bfloat16")
    file = write(home.folder / "other.json", {"revision": other.digest, "descriptor": other.to_json()})
    status, printed = home.everturn("diff", home.register(V12), file)
    assert status == 1
    lines = [line.split() for line in printed.splitlines()]
    assert lines[0][:4] == ["2", "of", str(len(V12.flat())), "fields"]
    assert ["kv_dtype", "float32", "bfloat16"] in lines
    assert any(line[0] == "weights" for line in lines[1:])


def test_equal_revisions_have_no_difference(home: Home) -> None:
    status, printed = home.everturn("diff", home.register(V12), write(home.folder / "f", V12.to_json()))
    assert (status, printed.split(":")[0]) == (0, "same")


@pytest.mark.parametrize("floating", ["latest", "main", "HuggingFaceTB/SmolLM2-135M-Instruct", "rev_12"])
def test_a_floating_reference_is_refused(home: Home, floating: str) -> None:
    status, printed = home.everturn("show", floating)
    assert status == 1
    assert "move, and identify nothing" in printed


def test_a_name_is_no_checkpoint_to_verify(home: Home) -> None:
    status, printed = home.everturn("verify", "org/model", home.register(V12))
    assert status == 1
    assert "is not a folder on this machine" in printed


def test_a_digest_that_nobody_registered_is_said_to_be_unknown(home: Home) -> None:
    status, printed = home.everturn("show", V12.digest)
    assert (status, printed) == (
        1,
        f"everturn: {V12.digest} is not registered: no engine has served it here.\n",
    )


def test_a_file_that_claims_another_digest_is_refused(home: Home) -> None:
    file = write(home.folder / "f", {"revision": V13.digest, "descriptor": V12.to_json()})
    status, printed = home.everturn("show", file)
    assert status == 1
    assert f"but its descriptor is {V12.digest}" in printed


@pytest.fixture
def measured(v12_engine: RealEngine) -> Descriptor:
    return Descriptor.from_json(v12_engine.identity["descriptor"])


@pytest.mark.engine
def test_the_files_that_an_engine_serves_verify_against_what_it_measured(
    home: Home, tiny_v12: Path, measured: Descriptor
) -> None:
    status, printed = home.everturn("verify", tiny_v12, home.register(measured))
    assert (status, printed.split(":")[0]) == (0, "same"), printed


@pytest.mark.engine
@pytest.mark.parametrize(
    ("model", "field"),
    [
        (TinyModel(sigma=0.005), "weights"),
        (TinyModel(config={"rms_norm_eps": 1e-6}), "architecture.rms_norm_eps"),
        (
            TinyModel(config={"rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}),
            "position.rope_parameters.rope_theta",
        ),
        (TinyModel(extra_token="<tool>"), "tokenizer"),
        (TinyModel(chat_template=CHATML + " "), "chat_template"),
    ],
    ids=["weights", "config", "rope", "tokenizer", "template"],
)
def test_files_that_differ_are_found_by_field(
    home: Home, measured: Descriptor, model: TinyModel, field: str
) -> None:
    folder = model.write(home.folder / "model")
    status, printed = home.everturn("verify", folder, home.register(measured))
    assert status == 1
    assert field in {line.split()[0] for line in printed.splitlines()}


@pytest.mark.engine
def test_a_byte_changed_behind_equal_size_and_mtime_is_found(
    home: Home, tiny_v12: Path, measured: Descriptor
) -> None:
    folder = Path(shutil.copytree(tiny_v12, home.folder / "copy"))
    digest, shard = home.register(measured), folder / "model.safetensors"
    assert home.everturn("verify", folder, digest)[0] == 0
    before = shard.stat()
    flip_one_weight_bit(folder)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert shard.stat().st_size == before.st_size
    status, printed = home.everturn("verify", folder, digest)
    assert (status, [line.split()[0] for line in printed.splitlines()[2:]]) == (1, ["weights"])


@pytest.mark.engine
def test_a_paranoid_pass_trusts_no_times(home: Home, tiny_v12: Path, measured: Descriptor) -> None:
    digest = home.register(measured)
    home.everturn("verify", tiny_v12, digest)
    cache = home.folder / "hashes" / "hashes.json"
    cache.write_text(json.dumps(dict.fromkeys(json.loads(cache.read_text()), "0" * 64)))
    assert home.everturn("verify", tiny_v12, digest)[0] == 1
    assert home.everturn("verify", tiny_v12, digest, "--paranoid")[0] == 0


def test_a_revision_is_retired_with_its_engines_and_by_force_with_who_was_pinned(home: Home) -> None:
    digest = home.register(V12)
    home.api.engines = [{"boot": "boot_a", "revision": digest}, {"boot": "boot_b", "revision": V13.digest}]
    home.api.pinned = ["conv_1"]
    status, printed = home.everturn("retire", digest)
    assert (status != 0, "1 conversations are stay_strict" in printed) == (True, True)
    status, printed = home.everturn("retire", digest, "--force")
    assert status == 0
    assert printed.splitlines() == ["boot_a is gone", "conv_1 is stay_strict, and gets no answer"]
    home.api.engines, home.api.pinned = [], []
    assert home.everturn("retire", digest) == (0, f"no engine serves {digest}\n")
