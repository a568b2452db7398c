"""Tiny random chat models, real in every part: a whole llama with its tokenizer, made in milliseconds."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LINE_BREAK, TAB = "Ċ", "ĉ"
"""As byte-level tokenizers spell it."""
VOCABULARY = 320
HIDDEN = 128
LAYERS = 2
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
SPREAD = 0.2
"""Wide enough that every earlier token shows in the next."""

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TAKES_TOOLS = """\
{%- if tools %}{{ '<|im_start|>system\\nFunctions:\\n' }}{% for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}\
{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""ChatML with tools, as Hermes' models have them."""
CALLS_FIRST = TAKES_TOOLS.replace(
    "<|im_start|>assistant\\n' }}{% endif %}",
    "<|im_start|>assistant\\n' }}{% if tools and messages[-1].role != 'tool' %}{{ '\\t' }}{% endif %}{% endif %}",
)
"""The same, whose answers begin after a tab where it is to call one, and after a line break where it is to speak."""
STRIPS_REASONING = CHATML.replace("message['content']", "message['content'].split('</think>')[-1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyModel:
    seed: int = 1
    sigma: float = 0.0
    """Noise added to every matrix, in units of its own standard deviation."""
    config: dict[str, object] = field(default_factory=dict)
    """Over the defaults of config.json."""
    chat_template: str = CHATML
    extra_token: str | None = None
    script: tuple[str, ...] = ()
    """What it says, greedily, after a line break: each piece a token of its own, and none of them twice."""
    after_tab: tuple[str, ...] = ()
    """The same after a tab; no piece of `script` either."""

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        save_file(self._weights(), folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(_config() | self.config))
        (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
        self._tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(_tokenizer_config()))
        (folder / "chat_template.jinja").write_text(self.chat_template)
        return folder

    def _weights(self) -> dict[str, np.ndarray]:
        random, noise = np.random.default_rng(self.seed), np.random.default_rng(self.seed + 1000)
        weights = {}
        for name, shape in _matrices().items():
            matrix = random.standard_normal(shape) * SPREAD
            moved = matrix + noise.standard_normal(shape) * matrix.std() * self.sigma
            weights[name] = moved.astype(np.float32)
        if self.script:
            self._learn(weights)
        return weights | {name: np.ones(HIDDEN, np.float32) for name in _norms()}

    def _tokenizer(self) -> Tokenizer:
        tokenizer = _tokenizer(self.extra_token)
        tokenizer.add_tokens([*self.script, *self.after_tab])
        return tokenizer

    def _learn(self, weights: dict[str, np.ndarray]) -> None:
        """Nothing but a token's own embedding reaches the end of the layers, and that means the next one."""
        for name, matrix in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight", "lm_head.weight")):
                matrix[:] = 0
        ids = self._tokenizer().token_to_id
        for beginning, script in ((LINE_BREAK, self.script), (TAB, self.after_tab)):
            if not script:
                continue
            said = [ids(beginning), *map(ids, script), SPECIAL.index("<|im_end|>")]
            for token, following in pairwise(said):
                weights["lm_head.weight"][following] += weights["model.embed_tokens.weight"][token]


def flip_one_weight_bit(folder: Path) -> None:
    """A checkpoint that no size, shape or name tells from the one before."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.down_proj.weight"].view(np.int32)[0, 0] ^= 1
    save_file(weights, path, metadata={"format": "pt"})


def _norms() -> list[str]:
    kinds = ("input_layernorm", "post_attention_layernorm")
    return ["model.norm.weight", *(f"model.layers.{i}.{k}.weight" for i in range(LAYERS) for k in kinds)]


def _matrices() -> dict[str, tuple[int, int]]:
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (2 * HIDDEN, HIDDEN),
        "mlp.up_proj": (2 * HIDDEN, HIDDEN),
        "mlp.down_proj": (HIDDEN, 2 * HIDDEN),
    }
    layers = {f"model.layers.{i}.{n}.weight": shape for i in range(LAYERS) for n, shape in shapes.items()}
    ends = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    return ends | layers


def _config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": False,
        "vocab_size": VOCABULARY,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _tokenizer(extra_token: str | None) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if extra_token is not None:
        tokenizer.add_tokens([extra_token])
    return tokenizer


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL[0],
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "model_max_length": 8192,
    }
