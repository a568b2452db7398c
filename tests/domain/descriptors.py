"""A descriptor like the one that a real engine measures, and ways to vary it."""

from dataclasses import replace
from typing import Any

from service.domain.revision import Descriptor, KvIdentity, TextIdentity

V12 = Descriptor(
    kv=KvIdentity(
        weights="sha256:" + "12" * 32,
        quantization="none",
        architecture={"hidden_size": 576, "rms_norm_eps": 1e-05, "tie_word_embeddings": True},
        position={"rope_parameters.rope_theta": 100000.0, "sliding_window": None},
        adapter="none",
        compute_dtype="float32",
        kv_dtype="float32",
        kv_scales="none",
        attention_backend="CPU_ATTN",
        attention_isa="avx512",
        engine="vllm",
        engine_version="0.32.0",
        model_runner="v1",
        block_size=4,
        kv_layout={"name": "LBHNC"},
        shards={"tensor_parallel": 1},
        draft_model="none",
        environment={},
        compile_mode="eager",
        serializer_abi=1,
    ),
    text=TextIdentity(
        tokenizer="sha256:" + "aa" * 32,
        tokenizer_libraries={"tokenizers": "0.23.3"},
        golden_tokens="sha256:" + "bb" * 32,
        chat_template="sha256:" + "cc" * 32,
        history_policy="kept",
        generation_defaults={"temperature": 1.0},
    ),
)


def with_kv(descriptor: Descriptor = V12, **changes: Any) -> Descriptor:
    return replace(descriptor, kv=replace(descriptor.kv, **changes))


def with_text(descriptor: Descriptor = V12, **changes: Any) -> Descriptor:
    return replace(descriptor, text=replace(descriptor.text, **changes))


V13 = with_kv(weights="sha256:" + "13" * 32)
