"""Which of a model's configuration KV depends on, and how: its architecture, and its positions."""

from collections.abc import Mapping
from typing import Any

from service.domain.canonical import Scalar
from workers.kv_connector.flat import flatten

CONFIG_NOISE = frozenset(
    {
        "transformers_version",
        "dtype",
        "torch_dtype",
        "use_cache",
        "id2label",
        "label2id",
        "quantization_config",
    }
    | {"output_attentions", "output_hidden_states", "return_dict", "problem_type"}
)
POSITION_KEYS = (
    "rope_",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
)
LENGTH_FREE_ROPE = frozenset({"default", "linear", "llama3", "yarn", "mrope"})
"""Rope kinds whose angles do not depend on the served length."""


def architecture_of(config: Mapping[str, Any]) -> dict[str, Scalar]:
    """Of a text config as transformers gives it, after it resolved itself."""
    return flatten(
        {
            key: value
            for key, value in config.items()
            if key not in CONFIG_NOISE and not key.startswith(("_", *POSITION_KEYS))
        }
    )


def position_of(config: Mapping[str, Any]) -> dict[str, Scalar]:
    return flatten({key: value for key, value in config.items() if key.startswith(POSITION_KEYS)})


def depends_on_length(position: Mapping[str, Scalar]) -> bool:
    kinds = {str(value) for key, value in position.items() if key.endswith("rope_type")}
    return not kinds <= LENGTH_FREE_ROPE
