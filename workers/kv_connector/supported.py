"""Which models' KV is carried: whole blocks of plain attention, on one rank. Anything else is refused by name."""

from typing import Any

from vllm.v1.kv_cache_interface import FullAttentionSpec


def not_carried(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """In words, why no KV of this engine is read or saved; None where it is."""
    parallel, groups = vllm_config.parallel_config, kv_cache_config.kv_cache_groups
    if parallel.world_size > 1 or parallel.decode_context_parallel_size > 1:
        return "KV of more than one rank is not carried"
    if len(groups) != 1:
        return f"{len(groups)} KV cache groups are not carried; --disable-hybrid-kv-cache-manager may make them one"
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:
        return f"KV of kind {type(spec).__name__} is not carried"
    if spec.block_size != vllm_config.cache_config.block_size:
        return "the KV blocks are not of the configured size"
    return None
