"""Keeps what people and models wrote apart from a template's own words, where it looks like control tokens."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from service.domain.errors import InvalidInput

FENCE = "\ue0f0{}\ue0f1"
"""Stands for the text of a control token while the template runs; private-use characters, which no template knows."""
PLACED = re.compile("\ue0f0(\\d+)\ue0f1")
ESCAPED = "\\ue0f0"
"""What a template makes of a fence that writes JSON in ASCII: it cannot be found again."""


class Fences:
    """For one rendering: `fenced` before the template, `encode` after it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        texts = {str(text) for text in tokenizer.convert_ids_to_tokens(sorted(self._special))}
        # Longest first: of two that begin alike the tokenizer takes the longer one.
        self._texts = ["\ue0f0", *sorted(texts, key=lambda text: (-len(text), text))]
        self._pattern = re.compile("|".join(map(re.escape, self._texts)))

    def holds(self, written: Any) -> bool:
        """Whether some string in it would become a control token."""
        match written:
            case str():
                return not self._special.isdisjoint(self._tokenizer.encode(written, add_special_tokens=False))
            case Mapping():
                return any(self.holds(part) for pair in written.items() for part in pair)
            case list() | tuple():
                return any(map(self.holds, written))
            case _:
                return False

    def fenced(self, written: Any) -> Any:
        """The same with a fence in place of each control token's text.

        Raises:
            InvalidInput: the tokenizer finds control tokens in another spelling, too.
        """
        match written:
            case str():
                text = self._pattern.sub(lambda found: FENCE.format(self._texts.index(found[0])), written)
                if self.holds(text):
                    raise InvalidInput(
                        "'messages' holds a control token that this tokenizer cannot split.", "messages"
                    )
                return text
            case Mapping():
                return {self.fenced(key): self.fenced(value) for key, value in written.items()}
            case list() | tuple():
                return [self.fenced(part) for part in written]
            case _:
                return written

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Never adds a BOS: a template that wants one writes it.

        Raises:
            InvalidInput: the template rewrote a fence, or the tokenizer cannot split what one stands for.
        """
        ids: list[int] = []
        for number, piece in enumerate(PLACED.split(prompt)):
            if number % 2:
                ids += self._split(self._texts[int(piece)])
            elif ESCAPED in piece or "\ue0f0" in piece:
                raise InvalidInput(
                    "A message holds text of control tokens, and this model's chat template rewrites messages, "
                    "so it cannot be rendered safely; remove that text.",
                    "messages",
                )
            elif piece:
                ids += self._tokenizer.encode(piece, add_special_tokens=False)
        return tuple(ids)

    def _split(self, text: str) -> Sequence[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if self._special.intersection(ids):
            raise InvalidInput(
                "'messages' holds a control token that this tokenizer cannot split.", "messages"
            )
        return ids
