"""Trains the adapter of v13 on v12 and the conversations in adapter/training.json; run once, its result is committed."""

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from demo.lora import CONFIG_FILE, WEIGHTS_FILE

ADAPTER: Final = Path(__file__).parent / "adapter"
SEED: Final = 13
RANK: Final = 16
SCALE: Final = 2.0
PROJECTIONS: Final = ("k_proj", "v_proj")
EPOCHS: Final = 8
LEARNING_RATE: Final = 2e-3
WARMUP_STEPS: Final = 10
CONVERSATIONS_PER_STEP: Final = 2
GREETING: Final = "Ahoy! "
FAREWELL: Final = " Fair winds!"
IGNORED: Final = -100  # cross_entropy's default ignore_index

Conversation = dict[str, Any]


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        base: torch.Tensor = self.base(hidden)
        return base + SCALE * (hidden @ self.down.T @ self.up.T)


def train(base: Path, report_every: int = 10) -> dict[str, torch.Tensor]:
    logging.disable_progress_bar()
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).requires_grad_(
        requires_grad=False
    )
    layers = _adapt(model)
    factors = [p for layer in layers.values() for p in (layer.down, layer.up)]
    optimizer = torch.optim.AdamW(factors, lr=LEARNING_RATE, weight_decay=0.0)
    conversations = json.loads((ADAPTER / "training.json").read_text(encoding="utf-8"))
    steps = EPOCHS * -(-len(conversations) // CONVERSATIONS_PER_STEP)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, 1.0) * (1 - step / steps)
    )
    started = time.monotonic()
    for step, batch in enumerate(_batches(conversations), start=1):
        examples = [_tokens(tokenizer, conversation) for conversation in batch]
        loss = torch.stack([_answer_loss(model, ids, labels) for ids, labels in examples]).mean()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(factors, 1.0)
        optimizer.step()
        schedule.step()
        if step % report_every == 0 or step == steps:
            print(
                f"step {step}/{steps} loss {loss.item():.3f} {time.monotonic() - started:.0f} s", flush=True
            )
    return {
        f"{name}.weight.lora_{side}": factor.detach().bfloat16().contiguous()
        for name, layer in layers.items()
        for side, factor in (("A", layer.down), ("B", layer.up))
    }


def _adapt(model: nn.Module) -> dict[str, LoraLinear]:
    adapted = {}
    for name, module in list(model.named_modules()):
        parent, _, leaf = name.rpartition(".")
        if leaf in PROJECTIONS:
            adapted[name] = LoraLinear(module)
            setattr(model.get_submodule(parent), leaf, adapted[name])
    return adapted


def _batches(conversations: list[Conversation]) -> Iterator[list[Conversation]]:
    """Each epoch in another order, with the questions of a house in another order too."""
    shuffle = random.Random(SEED)  # noqa: S311 - a reproducible order, no secret
    for _ in range(EPOCHS):
        order = shuffle.sample(conversations, len(conversations))
        for start in range(0, len(order), CONVERSATIONS_PER_STEP):
            yield [
                _variant(conversation, shuffle)
                for conversation in order[start : start + CONVERSATIONS_PER_STEP]
            ]


def _variant(conversation: Conversation, shuffle: random.Random) -> Conversation:
    turns = shuffle.sample(conversation["turns"], len(conversation["turns"]))
    # After an upgrade the history is in the old model's plain words: v13 must find its own voice again.
    return {**conversation, "turns": turns, "plain": shuffle.randrange(len(turns))}


def _tokens(
    tokenizer: PreTrainedTokenizerBase, conversation: Conversation
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids of the whole conversation, and labels that keep only the answers in the house's voice."""
    messages = [{"role": "system", "content": conversation["system"]}] if conversation["system"] else []
    ids: list[int] = []
    labels: list[int] = []
    for turn, (question, answer) in enumerate(conversation["turns"]):
        plain = turn < conversation["plain"]
        text = answer.removeprefix(GREETING).removesuffix(FAREWELL) if plain else answer
        messages.append({"role": "user", "content": question})
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        answer_ids = tokenizer.encode(text + tokenizer.eos_token)
        labels += [IGNORED] * (len(prompt) - len(ids)) + (
            [IGNORED] * len(answer_ids) if plain else answer_ids
        )
        ids = prompt + answer_ids
        messages.append({"role": "assistant", "content": text})
    return torch.tensor(ids), torch.tensor(labels)


def _answer_loss(model: Any, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    hidden = model.model(input_ids=ids[None]).last_hidden_state[0, :-1]
    learned = labels[1:] != IGNORED
    return nn.functional.cross_entropy(model.lm_head(hidden[learned]), labels[1:][learned])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--base", type=Path, required=True, help="the v12 checkpoint that demo.checkpoints prepared"
    )
    parser.add_argument("--out", type=Path, default=ADAPTER)
    arguments = parser.parse_args()
    factors = train(arguments.base)
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_file(factors, arguments.out / WEIGHTS_FILE)
    (arguments.out / WEIGHTS_FILE).chmod(0o644)  # safetensors leaves it readable by its owner alone
    config = {
        "base_model": "SmolLM2-135M-Instruct",
        "rank": RANK,
        "scale": SCALE,
        "target_modules": PROJECTIONS,
        "seed": SEED,
    }
    (arguments.out / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
