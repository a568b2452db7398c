"""Reads SmolLM2's GGUF as a plain Llama checkpoint: float32 tensors, tokenizer and configs under Hugging Face's names."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN: Final = 3  # gguf.TokenType.CONTROL

TOP_TENSORS: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_TENSORS: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufModel:
    def __init__(self, path: Path) -> None:
        self._reader = GGUFReader(path)

    def weights(self) -> dict[str, torch.Tensor]:
        """Every tensor in float32, shaped [out, in]."""
        heads = {
            "attn_q": self._field("llama.attention.head_count"),
            "attn_k": self._field("llama.attention.head_count_kv"),
        }
        weights = {}
        for tensor in self._reader.tensors:
            kind = tensor.name.split(".")[-2]
            values = torch.from_numpy(
                np.require(dequantize(tensor.data, tensor.tensor_type), requirements="W")
            )
            if kind in heads:
                values = _halves_from_pairs(values, heads[kind])
            weights[_hugging_face_name(tensor.name)] = values
        return weights

    def config(self) -> dict[str, Any]:
        # The file keeps the epsilon in float32; five digits give back the number it was made from.
        epsilon = float(f"{self._field('llama.attention.layer_norm_rms_epsilon'):.5g}")
        return {
            "architectures": ["LlamaForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": self._field("tokenizer.ggml.bos_token_id"),
            "dtype": "bfloat16",
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id"),
            "head_dim": self._field("llama.rope.dimension_count"),
            "hidden_act": "silu",
            "hidden_size": self._field("llama.embedding_length"),
            "initializer_range": 0.02,
            "intermediate_size": self._field("llama.feed_forward_length"),
            "max_position_embeddings": self._field("llama.context_length"),
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": self._field("llama.attention.head_count"),
            "num_hidden_layers": self._field("llama.block_count"),
            "num_key_value_heads": self._field("llama.attention.head_count_kv"),
            "pad_token_id": self._field("tokenizer.ggml.padding_token_id"),
            "rms_norm_eps": epsilon,
            "rope_parameters": {"rope_theta": self._field("llama.rope.freq_base"), "rope_type": "default"},
            "tie_word_embeddings": True,
            "use_cache": True,
            "vocab_size": self._field("llama.vocab_size"),
        }

    def generation_config(self) -> dict[str, Any]:
        return {
            f"{name}_token_id": self._field(f"tokenizer.ggml.{key}") for name, key in _SPECIAL_IDS.items()
        }

    def chat_template(self) -> str:
        return str(self._field("tokenizer.chat_template"))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer this vocabulary was trained with; other pre-tokenizers than "smollm" are refused."""
        if (scheme := self._field("tokenizer.ggml.pre")) != "smollm":
            raise ValueError(f"tokenizer.ggml.pre is {scheme!r}, only 'smollm' can be rebuilt")
        tokens = self._field("tokenizer.ggml.tokens")
        merges = [tuple(merge.split(" ")) for merge in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        # transformers' own GGUF loader forgets the split of digits, and so cuts "a  1" differently.
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        kinds = self._field("tokenizer.ggml.token_type")
        control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
        tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
        return tokenizer

    def tokenizer_config(self) -> dict[str, Any]:
        tokens = self._field("tokenizer.ggml.tokens")
        ids = {**_SPECIAL_IDS, "unk": "unknown_token_id"}
        return {
            **{f"{name}_token": tokens[self._field(f"tokenizer.ggml.{key}")] for name, key in ids.items()},
            "clean_up_tokenization_spaces": False,
            "model_max_length": self._field("llama.context_length"),
            "tokenizer_class": "PreTrainedTokenizerFast",
        }

    def _field(self, key: str) -> Any:
        field = self._reader.get_field(key)
        if field is None:
            raise ValueError(f"{key} is missing from the GGUF metadata")
        return field.contents()


_SPECIAL_IDS: Final = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}


def _hugging_face_name(name: str) -> str:
    parts = name.split(".")  # token_embd.weight or blk.<layer>.attn_q.weight
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_TENSORS[parts[2]]}.{parts[3]}"
    return f"{TOP_TENSORS[parts[0]]}.{parts[1]}"


def _halves_from_pairs(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Undoes llama.cpp's row order: it rotates neighbouring rows, Hugging Face's Llama the two halves of a head."""
    rows, columns = values.shape
    half = rows // heads // 2
    return values.reshape(heads, half, 2, columns).swapaxes(1, 2).reshape(rows, columns).contiguous()
