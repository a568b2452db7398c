"""Measures what decides whether token ids may be carried over: tokenizer, libraries, template, defaults."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import tokenizers
import transformers

from service.domain import canonical
from service.domain.artifact import pack_tokens
from service.domain.errors import InvalidInput
from service.domain.revision import STRIPPED, TextIdentity
from workers.kv_connector.flat import flatten
from workers.kv_connector.rendering import Message, load_tokenizer, render_text
from workers.kv_connector.weights import files_digest

TOKENIZER_FILES = frozenset(
    {
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "tekken.json",
    }
)
TOKENIZER_SUFFIXES = (".model", ".spm", ".tiktoken", ".bpe")

GOLDEN_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two leading, three inner   and two trailing spaces  ",
    "tab\there, newline\nthere, carriage\r\nreturn, blank\n\n\nlines",
    "def f(x: int) -> dict[str, int]:\n    return {'x': x ** 2}  # café\n",
    "0 1 12 123 1234 12345 3.14159 1e-9 0xDEADBEEF 2026-02-29",
    "Größe, naïve, Ελληνικά, русский, עברית, العربية, हिन्दी, 日本語, 한국어, ไทย",
    "e\u0301 versus \u00e9, \u200b zero width, \ufeff mark, \u00a0 hard space",
    "😀 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 ✂️",
    "Hi <|im_end|> there <|im_start|>assistant </s> <s> [INST] <|endoftext|> <|eot_id|>",
    '<think>\nstep one\n</think>\n\n<tool_call>{"name": "f"}</tool_call>',
    "",
)

PROBE = (
    Message(role="user", content="one"),
    Message(role="assistant", content="<think>\nwhy\n</think>\n\ntwo"),
    Message(role="user", content="three"),
)


def measure_text(model_config: Any, chat_template: str | None = None) -> tuple[TextIdentity, tuple[int, ...]]:
    """The text identity, and the token ids that end a turn.

    Args:
        model_config: vLLM's, after it resolved itself.
        chat_template: in place of the folder's.

    Raises:
        InvalidInput: where the tokenizer cannot be measured.
    """
    folder = Path(model_config.tokenizer)
    if model_config.skip_tokenizer_init or not folder.is_dir():
        raise InvalidInput(
            f"'{folder}' is no local tokenizer folder; give one with --tokenizer.", "tokenizer"
        )
    tokenizer = load_tokenizer(
        str(folder), trust_remote_code=model_config.trust_remote_code, chat_template=chat_template
    )
    stops = _stop_token_ids(model_config, tokenizer)
    return TextIdentity(
        tokenizer=files_digest(tokenizer_files(folder), cache=None),
        tokenizer_libraries={
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
            "class": type(tokenizer).__name__,
            "mode": _resolved_mode(model_config.tokenizer_mode),
        },
        golden_tokens=golden_digest(tokenizer),
        chat_template=canonical.digest(tokenizer.chat_template) if tokenizer.chat_template else "none",
        history_policy=history_policy(tokenizer),
        generation_defaults=flatten(model_config.get_diff_sampling_param() | {"stop_token_ids": list(stops)}),
    ), stops


def chat_template_of(vllm_config: Any) -> str | None:
    """That the engine was given in place of its folder's: vLLM itself tells only its API server."""
    extra = vllm_config.kv_transfer_config.kv_connector_extra_config
    ours = [extra, *(one.get("kv_connector_extra_config", {}) for one in extra.get("connectors", ()))]
    return next((one["chat_template"] for one in ours if one.get("chat_template")), None)


def golden_digest(tokenizer: Any) -> str:
    """SHA-256 over the ids of the fixed texts, as text and as content that may hold no control token."""
    digest = sha256()
    for text in GOLDEN_TEXTS:
        for split in (False, True):
            ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=split)
            digest.update(len(ids).to_bytes(8, "little") + pack_tokens(ids))
    return digest.hexdigest()


def history_policy(tokenizer: Any) -> str:
    """Whether an answer stands in later prompts as it was generated: 'kept', 'stripped', or 'none' without a template."""
    if not tokenizer.chat_template:
        return "none"
    before = render_text(tokenizer, PROBE[:1])
    after = render_text(tokenizer, PROBE)
    return "kept" if after.startswith(before + PROBE[1].content) else STRIPPED


def tokenizer_files(folder: Path) -> list[Path]:
    found = [
        path
        for path in folder.iterdir()
        if path.name in TOKENIZER_FILES
        or path.name.endswith(TOKENIZER_SUFFIXES)
        or (path.name.startswith("tokenization_") and path.suffix == ".py")
    ]
    if not found:
        raise InvalidInput(f"'{folder}' holds no tokenizer file.", "tokenizer")
    return found


def _stop_token_ids(model_config: Any, tokenizer: Any) -> tuple[int, ...]:
    candidates: tuple[Any, ...] = (
        model_config.try_get_generation_config().get("eos_token_id"),
        getattr(model_config.hf_text_config, "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    ids: set[Any] = set()
    for candidate in candidates:
        ids.update(candidate if isinstance(candidate, list | tuple) else [candidate])
    return tuple(sorted(i for i in ids if isinstance(i, int)))


def _resolved_mode(mode: str) -> str:
    # "auto" is what vLLM calls transformers' own choice between fast and slow; the class above names the result.
    return "transformers" if mode == "auto" else mode
