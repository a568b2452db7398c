"""What an engine cannot measure it refuses to guess: here, of a draft model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from service.domain.errors import InvalidInput
from workers.kv_connector.identity import _draft_model


def draft(cache: Path, **config: Any) -> str:
    return _draft_model(SimpleNamespace(num_speculative_tokens=3, **config), cache, paranoid=False)


def checkpoint(folder: Path, data: bytes) -> Path:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(data)
    return folder


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafting_from_the_text_alone_has_no_weights(tmp_path: Path, method: str) -> None:
    assert draft(tmp_path, method=method, model=method) == f"{method} 3 weightless"


def test_without_a_draft_there_is_none(tmp_path: Path) -> None:
    assert _draft_model(None, tmp_path, paranoid=False) == "none"


def test_other_weights_are_another_draft_model_wherever_they_lie(tmp_path: Path) -> None:
    one, same, other = (
        checkpoint(tmp_path / name, data) for name, data in (("a", b"one"), ("b", b"one"), ("c", b"two"))
    )
    known = [draft(tmp_path, method="eagle", model=str(folder)) for folder in (one, same, other)]
    assert known[0] == known[1] != known[2]


@pytest.mark.parametrize("model", ["org/eagle-head", None, "extract_hidden_states"])
def test_a_draft_model_that_is_not_on_this_machine_leaves_the_engine_without_a_revision(
    tmp_path: Path, model: str | None
) -> None:
    with pytest.raises(InvalidInput, match="is not a folder on this machine"):
        draft(tmp_path, method="eagle", model=model)
