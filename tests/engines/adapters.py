"""Tiny random LoRA adapters for the tiny models, as PEFT saves them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.engines.checkpoints import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS

RANK = 8
WIDTHS = {"q_proj": HEADS * HEAD_DIM, "k_proj": KV_HEADS * HEAD_DIM, "v_proj": KV_HEADS * HEAD_DIM}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyAdapter:
    seed: int
    scale: float = 1.0

    def write(self, folder: Path) -> Path:
        """Over whatever stands there: that is how adapters are overwritten in place."""
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(self.seed)
        weights = {}
        for layer in range(LAYERS):
            for name, width in WIDTHS.items():
                stem = f"base_model.model.model.layers.{layer}.self_attn.{name}"
                weights[f"{stem}.lora_A.weight"] = (
                    random.standard_normal((RANK, HIDDEN)).astype(np.float32) * 0.1
                )
                weights[f"{stem}.lora_B.weight"] = (
                    random.standard_normal((width, RANK)).astype(np.float32) * 0.1
                )
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "r": RANK,
            "lora_alpha": RANK * self.scale,
            "target_modules": sorted(WIDTHS),
            "bias": "none",
            "base_model_name_or_path": "tiny",
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder
