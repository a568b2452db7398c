"""A checkpoint that cannot be loaded is refused before it is tried, by the name of what is wrong with it."""

from pathlib import Path

import pytest

from service.domain.errors import InvalidInput
from tests.workers.shards import write_checkpoint
from workers.checkpoint_check import require_whole


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def test_a_whole_one_is_fine(shard: Path) -> None:
    require_whole(shard.parent)


@pytest.mark.parametrize("tail", [b"", b"weight", b"weights and more"])
def test_a_shard_of_another_size_than_its_header_says_is_named(shard: Path, tail: bytes) -> None:
    shard.write_bytes(shard.read_bytes().removesuffix(b"weights") + tail)
    with pytest.raises(InvalidInput, match=rf"'{shard}' is not a whole .* where its header says .* again\.$"):
        require_whole(shard.parent)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"x",
        b"\xff" * 64,
        b"\x04\0\0\0\0\0\0\0{[}]",
        b"\x02\0\0\0\0\0\0\0[]",
        b'\x08\0\0\0\0\0\0\0{"a": 1}',
    ],
)
def test_a_shard_without_a_header_is_named(shard: Path, header: bytes) -> None:
    shard.write_bytes(header)
    with pytest.raises(InvalidInput, match=rf"'{shard}' .* no readable header"):
        require_whole(shard.parent)


def test_a_folder_without_config_is_named(shard: Path) -> None:
    (shard.parent / "config.json").unlink()
    with pytest.raises(InvalidInput, match=rf"'{shard.parent}' has no config.json"):
        require_whole(shard.parent)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_config_that_is_none_is_named(shard: Path, text: str) -> None:
    (shard.parent / "config.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"config.json' is not a JSON object"):
        require_whole(shard.parent)
