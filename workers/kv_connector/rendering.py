"""Messages to token ids: whole, or only what follows stored ids; text that users wrote never becomes a control token."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from transformers import AutoTokenizer

from service.domain.errors import InvalidInput

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
"""Templates paste the role as it is, so it must not be free text."""

FENCE = "\ue0f0{}\ue0f1"
"""Stands for a message's content while the template runs; private-use characters, which no template knows."""


class Mode(StrEnum):
    FULL = "full"
    DELTA = "delta"


class Reason(StrEnum):
    NOTHING_CARRIED = "nothing_carried"
    CARRIED = "carried"
    TEMPLATE_NOT_APPEND_ONLY = "template_not_append_only"
    STOP_TOKEN_NOT_OF_TEMPLATE = "stop_token_not_of_template"  # noqa: S105 a reason, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Stored ids that cover the first `messages` messages; the last of them is the answer that ended in `last_token`."""

    messages: int
    last_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    token_ids: tuple[int, ...]
    mode: Mode
    reason: Reason


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    written: bool
    """By a user or a model; otherwise by the template."""


def load_tokenizer(folder: str, *, trust_remote_code: bool = False) -> Any:
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)


def render(
    tokenizer: Any, messages: Sequence[Message], carried: Carried | None, stop_token_ids: Sequence[int]
) -> Rendered:
    """The whole prompt, or, after `carried`, the ids to append to the stored ones.

    Raises:
        InvalidInput: naming the field; also where the template rewrites text that holds control tokens.
    """
    _check(messages, carried)
    prompt = render_text(tokenizer, messages)
    if carried is None:
        return _full(tokenizer, messages, prompt, Reason.NOTHING_CARRIED)
    covered = (
        render_text(tokenizer, messages[: carried.messages - 1]) + messages[carried.messages - 1].content
    )
    if not prompt.startswith(covered):
        return _full(tokenizer, messages, prompt, Reason.TEMPLATE_NOT_APPEND_ONLY)
    start = len(covered)
    if carried.last_token in stop_token_ids:
        stop = tokenizer.convert_ids_to_tokens(carried.last_token)
        if not prompt.startswith(stop, start):
            return _full(tokenizer, messages, prompt, Reason.STOP_TOKEN_NOT_OF_TEMPLATE)
        start += len(stop)
    ids = _encode(tokenizer, messages, prompt, start)
    return Rendered(token_ids=ids, mode=Mode.DELTA, reason=Reason.CARRIED)


def render_text(tokenizer: Any, messages: Sequence[Message]) -> str:
    """By the model's own template, with the prompt for the next answer."""
    turns = [asdict(message) for message in messages]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def _full(tokenizer: Any, messages: Sequence[Message], prompt: str, reason: Reason) -> Rendered:
    return Rendered(token_ids=_encode(tokenizer, messages, prompt, 0), mode=Mode.FULL, reason=reason)


def _check(messages: Sequence[Message], carried: Carried | None) -> None:
    if not messages:
        raise InvalidInput("'messages' must hold at least one message.", "messages")
    for index, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidInput(
                f"'messages.{index}.role' must be one of {', '.join(sorted(ROLES))}.",
                f"messages.{index}.role",
            )
    if carried is None:
        return
    if not 1 <= carried.messages <= len(messages):
        raise InvalidInput(f"'carried.messages' must be 1 to {len(messages)}.", "carried.messages")
    if messages[carried.messages - 1].role != "assistant":
        raise InvalidInput("The last carried message must be the assistant's.", "carried.messages")


def _encode(tokenizer: Any, messages: Sequence[Message], prompt: str, start: int) -> tuple[int, ...]:
    """Of `prompt[start:]`. Never adds a BOS: a template that wants one writes it."""
    special = set(tokenizer.all_special_ids) | {
        index for index, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    if not any(_holds(tokenizer, message.content, special) for message in messages):
        return tuple(tokenizer.encode(prompt[start:], add_special_tokens=False))
    ids: list[int] = []
    for piece in _after(_pieces(tokenizer, messages, prompt), start):
        encoded = tokenizer.encode(piece.text, add_special_tokens=False, split_special_tokens=piece.written)
        if piece.written and special.intersection(encoded):
            raise InvalidInput(
                "'messages' holds a control token that this tokenizer cannot split.", "messages"
            )
        ids += encoded
    return tuple(ids)


def _holds(tokenizer: Any, text: str, special: set[int]) -> bool:
    return not special.isdisjoint(tokenizer.encode(text, add_special_tokens=False))


def _pieces(tokenizer: Any, messages: Sequence[Message], prompt: str) -> list[_Piece]:
    fences = [FENCE.format(index) for index in range(len(messages))]
    rest = render_text(
        tokenizer, [Message(role=m.role, content=fence) for m, fence in zip(messages, fences, strict=True)]
    )
    pieces, at = [], 0
    for message, fence in zip(messages, fences, strict=True):
        if fence not in rest:  # the template left this message out
            continue
        before, _, rest = rest.partition(fence)
        at += len(before)
        text = _as_rendered(message.content, prompt, at, rest)
        at += len(text)
        pieces += [_Piece(before, written=False), _Piece(text, written=True)]
    pieces.append(_Piece(rest, written=False))
    if "".join(piece.text for piece in pieces) != prompt:
        raise InvalidInput(
            "A message holds text of control tokens, and this model's chat template rewrites messages, "
            "so it cannot be rendered safely; remove that text.",
            "messages",
        )
    return pieces


def _as_rendered(content: str, prompt: str, at: int, rest: str) -> str:
    """Many templates trim contents: whichever form stands in the real prompt."""
    following = rest.partition(FENCE[0])[0]
    forms = (content, content.strip(), content.rstrip(), content.lstrip())
    return next((form for form in forms if prompt.startswith(form + following, at)), content)


def _after(pieces: Iterable[_Piece], start: int) -> Iterable[_Piece]:
    position = 0
    for piece in pieces:
        text = piece.text[max(start - position, 0) :]
        position += len(piece.text)
        if text:
            yield _Piece(text, written=piece.written)
