"""What of a revision a checkpoint's files alone decide; the rest is measured by the engine that serves them."""

from collections.abc import Mapping
from pathlib import Path

import tokenizers
import transformers

from service.domain import canonical
from service.domain.canonical import Scalar
from service.domain.errors import InvalidInput
from workers.kv_connector.model_config import architecture_of, position_of
from workers.kv_connector.rendering import load_tokenizer
from workers.kv_connector.text_identity import golden_digest, history_policy, tokenizer_files
from workers.kv_connector.weights import files_digest, weights_digest

FROM_ENGINE = frozenset(
    {
        "architecture.implementation",
        "position.window_disabled",
        "position.max_model_len",
        "tokenizer_libraries.mode",
    }
)
"""Parts of the groups below that only an engine resolves."""

GROUPS = frozenset(
    {
        "weights",
        "architecture",
        "position",
        "tokenizer",
        "tokenizer_libraries",
        "golden_tokens",
        "chat_template",
        "history_policy",
    }
)


def measure_files(model: Path, cache: Path, *, paranoid: bool = False) -> dict[str, Scalar]:
    """By dotted field name, as a descriptor's own fields.

    Args:
        model: checkpoint folder.
        cache: folder that keeps hashes of weights.
        paranoid: read every byte, whatever the cache knows.

    Raises:
        InvalidInput: naming what is missing in the folder.
    """
    weights = weights_digest(model, cache, paranoid=paranoid)
    try:
        config = transformers.AutoConfig.from_pretrained(model, local_files_only=True)
        tokenizer = load_tokenizer(str(model), trust_remote_code=False)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise InvalidInput(f"'{model}' cannot be read by transformers: {first}", "model") from error
    text_config = config.get_text_config().to_dict()
    return (
        {"weights": weights}
        | {f"architecture.{key}": value for key, value in architecture_of(text_config).items()}
        | {f"position.{key}": value for key, value in position_of(text_config).items()}
        | {
            "tokenizer": files_digest(tokenizer_files(model), cache=None),
            "tokenizer_libraries.transformers": transformers.__version__,
            "tokenizer_libraries.tokenizers": tokenizers.__version__,
            "tokenizer_libraries.class": type(tokenizer).__name__,
            "golden_tokens": golden_digest(tokenizer),
            "chat_template": canonical.digest(tokenizer.chat_template) if tokenizer.chat_template else "none",
            "history_policy": history_policy(tokenizer),
        }
    )


def decided_by_files(fields: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Those of a whole descriptor's fields that `measure_files` measures."""
    return {
        name: value
        for name, value in fields.items()
        if name.partition(".")[0] in GROUPS and name not in FROM_ENGINE
    }
