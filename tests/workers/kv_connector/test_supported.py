"""Which models' KV is carried, decided from what vLLM allocates: everything else is refused by name."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1 import kv_cache_interface as kinds

from workers.kv_connector.supported import not_carried

ATTENTION = {"block_size": 32, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
FULL = kinds.FullAttentionSpec(**ATTENTION)


def verdict(*groups: Any, world_size: int = 1, decode_context: int = 1, block_size: int = 32) -> str | None:
    vllm_config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=world_size, decode_context_parallel_size=decode_context),
        cache_config=SimpleNamespace(block_size=block_size),
    )
    found = [SimpleNamespace(kv_cache_spec=spec) for spec in groups]
    return not_carried(vllm_config, SimpleNamespace(kv_cache_groups=found))


def test_plain_attention_of_one_rank_is_carried() -> None:
    """The twin of all that follows."""
    assert verdict(FULL) is None


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (kinds.MLAAttentionSpec(**ATTENTION), "MLAAttentionSpec"),
        (kinds.SlidingWindowSpec(**ATTENTION, sliding_window=64), "SlidingWindowSpec"),
        (kinds.ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=64), "ChunkedLocalAttentionSpec"),
        (kinds.MambaSpec(32, ((1, 2),), (torch.float32,)), "MambaSpec"),
        (kinds.CrossAttentionSpec(**ATTENTION), "CrossAttentionSpec"),
        (kinds.SinkFullAttentionSpec(**ATTENTION, sink_len=4), "SinkFullAttentionSpec"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kv_of_another_kind_is_refused_by_name(spec: Any, name: str) -> None:
    """Also where that kind derives from plain attention, as MLA does."""
    assert verdict(spec) == f"KV of kind {name} is not carried"


@pytest.mark.parametrize(
    "groups", [(), (FULL, FULL), (FULL, kinds.MambaSpec(32, ((1, 2),), (torch.float32,)))]
)
def test_a_hybrid_model_is_refused_with_a_way_out(groups: tuple[Any, ...]) -> None:
    assert str(verdict(*groups)).startswith(f"{len(groups)} KV cache groups are not carried")
    assert "--disable-hybrid-kv-cache-manager" in str(verdict(*groups))


@pytest.mark.parametrize("ranks", [{"world_size": 2}, {"decode_context": 2}])
def test_more_than_one_rank_is_refused(ranks: dict[str, int]) -> None:
    assert verdict(FULL, **ranks) == "KV of more than one rank is not carried"


def test_blocks_of_another_size_than_was_configured_are_refused() -> None:
    assert verdict(FULL, block_size=64) == "the KV blocks are not of the configured size"
