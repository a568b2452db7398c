"""What decides whether token ids may be carried: files, libraries, the ids of fixed texts, the template, what ends a turn."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import transformers

from service.domain.errors import InvalidInput
from service.domain.revision import TextIdentity
from tests.engines.checkpoints import CHATML, STRIPS_REASONING, TinyModel
from workers.kv_connector import text_identity
from workers.kv_connector.rendering import load_tokenizer
from workers.kv_connector.text_identity import measure_text, tokenizer_files
from workers.kv_connector.weights import files_digest


def model_config(folder: Path, **changes: Any) -> Any:
    """As vLLM's."""
    config: dict[str, Any] = {
        "tokenizer": str(folder),
        "skip_tokenizer_init": False,
        "trust_remote_code": False,
        "tokenizer_mode": "auto",
        "hf_text_config": SimpleNamespace(eos_token_id=2),
        "try_get_generation_config": lambda: {"eos_token_id": 2},
        "get_diff_sampling_param": dict,
    }
    return SimpleNamespace(**config | changes)


def measured(folder: Path, **changes: Any) -> TextIdentity:
    return measure_text(model_config(folder, **changes))[0]


def differing(one: TextIdentity, other: TextIdentity) -> set[str]:
    return {name for name in one.__slots__ if getattr(one, name) != getattr(other, name)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return TinyModel().write(tmp_path / "model")


def test_the_same_files_elsewhere_are_the_same(folder: Path, tmp_path: Path) -> None:
    assert measured(folder) == measured(TinyModel().write(tmp_path / "elsewhere"))


@pytest.mark.parametrize("library", [transformers, tokenizers], ids=lambda module: module.__name__)
def test_t3_another_library_version_is_another_identity(
    folder: Path, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case T3."""
    before = measured(folder)
    monkeypatch.setattr(library, "__version__", "0.0.1")
    assert differing(before, measured(folder)) == {"tokenizer_libraries"}


def test_libraries_that_make_other_ids_of_the_same_files_are_seen_whatever_they_call_themselves(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, load = measured(folder), load_tokenizer

    def other(path: str, **more: Any) -> Any:
        """Splits spaces otherwise, as releases of these libraries have done."""
        tokenizer = load(path, **more)
        tokenizer.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
        return tokenizer

    monkeypatch.setattr(text_identity, "load_tokenizer", other)
    assert "golden_tokens" in differing(before, measured(folder))


@pytest.mark.parametrize(
    "name",
    [
        *(
            "added_tokens.json",
            "merges.txt",
            "special_tokens_map.json",
            "tekken.json",
            "vocab.json",
            "vocab.txt",
        ),
        *("tokenizer.model", "bpe.tiktoken", "spm.spm", "codes.bpe", "tokenization_own.py"),
    ],
)
def test_every_file_that_a_tokenizer_may_be_made_of_counts(folder: Path, name: str) -> None:
    before = files_digest(tokenizer_files(folder), cache=None)
    (folder / name).write_text("{}")
    assert files_digest(tokenizer_files(folder), cache=None) != before


def test_a_file_of_the_tokenizer_that_changes_without_changing_an_id_counts(folder: Path) -> None:
    before, path = measured(folder), folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": 4096}))
    assert differing(before, measured(folder)) == {"tokenizer"}


def test_the_template_and_whether_it_keeps_answers_count(folder: Path, tmp_path: Path) -> None:
    kept = measured(folder)
    assert kept.history_policy == "kept"
    closed = CHATML.replace("<|im_end|>' + '\n'", "<|im_end|>' + '\n\n'")
    spaced = measured(TinyModel(chat_template=closed).write(tmp_path / "spaced"))
    assert differing(kept, spaced) == {"chat_template"}
    stripped = measured(TinyModel(chat_template=STRIPS_REASONING).write(tmp_path / "strips"))
    assert differing(kept, stripped) == {"chat_template", "history_policy"}
    assert stripped.history_policy == "stripped"


def test_what_ends_a_turn_and_the_sampling_defaults_count(folder: Path) -> None:
    before = measured(folder)
    stops = measured(folder, try_get_generation_config=lambda: {"eos_token_id": [2, 0]})
    assert differing(before, stops) == {"generation_defaults"}
    sampling = measured(folder, get_diff_sampling_param=lambda: {"temperature": 0.5})
    assert differing(before, sampling) == {"generation_defaults"}
    assert measure_text(model_config(folder))[1] == (2,)


@pytest.mark.parametrize("changes", [{"skip_tokenizer_init": True}, {"tokenizer": "org/model"}])
def test_a_tokenizer_that_is_not_at_hand_cannot_be_measured(folder: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="no local tokenizer folder"):
        measured(folder, **changes)
