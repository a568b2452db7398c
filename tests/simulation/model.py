"""A model that is nothing but its KV: each block's bytes follow from weights, tokens and all bytes before; the answer from all of them."""

from collections.abc import Sequence
from hashlib import sha256

from service.domain.artifact import pack_tokens
from service.domain.revision import Descriptor
from tests.engines.simulated import BLOCK, FIRST_WORD, WORDS
from tests.engines.simulated_text import STOP

LONGEST_ANSWER = 5


def weights_of(own: Descriptor) -> bytes:
    return f"{own.kv.weights} {own.kv.adapter} {own.kv.engine_version}".encode()


def prefill(own: Descriptor, tokens: Sequence[int], known: Sequence[bytes] = ()) -> list[bytes]:
    """The KV of each whole block; that of a prefix which is known is taken as it is."""
    weights, blocks = weights_of(own), list(known)
    for start in range(len(blocks) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        before = blocks[-1] if blocks else b""
        blocks.append(sha256(weights + before + pack_tokens(tokens[start : start + BLOCK])).digest())
    return blocks


def answer(own: Descriptor, prompt: Sequence[int], blocks: Sequence[bytes] | None = None) -> tuple[int, ...]:
    """Greedy; of the prompt's KV in `blocks`, or of a cold prefill. The stop token last."""
    kv = prefill(own, prompt) if blocks is None else blocks
    tail = pack_tokens(prompt[len(kv) * BLOCK :])
    state = sha256(weights_of(own) + b"".join(kv) + tail).digest()
    words = 1 + state[-1] % LONGEST_ANSWER
    return (*(FIRST_WORD + state[n] % len(WORDS) for n in range(words)), STOP)
