"""Writes a GGUF, and the same with an adapter merged, as two bf16 checkpoints that differ in weight bytes alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from demo.dequantize import GgufModel
from demo.lora import merge


def write_checkpoints(gguf: Path, adapter: Path, *, v12: Path, v13: Path) -> None:
    model = GgufModel(gguf)
    v12.mkdir()
    model.tokenizer().save(str(v12 / "tokenizer.json"))
    (v12 / "chat_template.jinja").write_text(model.chat_template(), encoding="utf-8")
    _write_json(v12 / "config.json", model.config())
    _write_json(v12 / "generation_config.json", model.generation_config())
    _write_json(v12 / "tokenizer_config.json", model.tokenizer_config())
    v13.mkdir()
    for file in v12.iterdir():
        (v13 / file.name).write_bytes(file.read_bytes())
    # The adapter was trained on v12 as it is served, in bf16, so that is what it is merged into.
    weights = {name: values.bfloat16() for name, values in model.weights().items()}
    _write_weights(v12, weights)
    _write_weights(v13, merge(weights, adapter))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_weights(checkpoint: Path, weights: Mapping[str, torch.Tensor]) -> None:
    file = checkpoint / "model.safetensors"
    save_file({name: weights[name].bfloat16() for name in sorted(weights)}, file, metadata={"format": "pt"})
    file.chmod(0o644)  # safetensors leaves it readable by its owner alone
