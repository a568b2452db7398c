"""The low-rank adapter that turns v12 into v13: its file layout, and merging it into the weights."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

WEIGHTS_FILE = "adapter.safetensors"
CONFIG_FILE = "adapter_config.json"


def merge(weights: Mapping[str, torch.Tensor], adapter: Path) -> dict[str, torch.Tensor]:
    """W + scale * B @ A in float32 for every adapted weight, the others as they are.

    The adapter holds, for a weight [out, in] named `w`, `w.lora_A` [rank, in] and `w.lora_B` [out, rank].
    """
    scale = float(json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))["scale"])
    factors = load_file(adapter / WEIGHTS_FILE)
    merged = dict(weights)
    for name in {key.rpartition(".lora_")[0] for key in factors}:
        down, up = factors[f"{name}.lora_A"].float(), factors[f"{name}.lora_B"].float()
        merged[name] = weights[name].float() + scale * (up @ down)
    return merged
