r"""An answer of several items as one line of text that only grows: what its stream is cut from, and told again by.

A message that comes first stands as it is. Before whatever else begins there is a mark, `\x1e`, with a letter for its kind,
and for a function call its name, as JSON, and `\x1f`. A `\x1e` within a text is doubled. Whoever has the beginning of a line has
the items in it, and the last one as far as it goes.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from service.domain.events import ItemId, TurnId
from service.domain.items import CallId, ItemKind, Part

MARK, END = "\x1e", "\x1f"
LETTERS = {ItemKind.MESSAGE: "m", ItemKind.REASONING: "r", ItemKind.FUNCTION_CALL: "c"}
KINDS = {letter: kind for kind, letter in LETTERS.items()}
_MARKED = re.compile(f"{MARK}(?:({MARK})|([mr])|c([^{END}]*){END})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An item of the answer; the texts that follow are its own."""

    kind: ItemKind
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """More of an answer, as the engine's parsers make it out. It goes on with the last item if that is of its kind."""

    kind: ItemKind
    text: str
    function: str | None = None
    """Begins a call."""


def plain(text: str) -> str:
    """The line of an answer that is one message."""
    return text.replace(MARK, MARK + MARK)


def line_of(items: Sequence[Part]) -> str:
    begun = Telling()
    for part in items:
        begun.begin(part.kind, part.function)
        begun.go_on(part.text)
    return begun.line


def words(line: str) -> str:
    """All that it says, whatever items that is in."""
    return "".join(told for told in Reader().read(line) if isinstance(told, str))


class Telling:
    """Makes a line of an answer while it is generated."""

    def __init__(self) -> None:
        self.line = ""
        self._kind: ItemKind | None = None

    def add(self, fragment: Fragment) -> None:
        if fragment.function is not None or fragment.kind is not self._kind:
            self.begin(fragment.kind, fragment.function or "")
        self.go_on(fragment.text)

    def begin(self, kind: ItemKind, function: str = "") -> None:
        if self.line or kind is not ItemKind.MESSAGE:
            name = json.dumps(function) + END if kind is ItemKind.FUNCTION_CALL else ""
            self.line += MARK + LETTERS[kind] + name
        self._kind = kind

    def go_on(self, text: str) -> None:
        self.line += plain(text)


class Reader:
    """Reads a line piece by piece; a piece ends where one was told, and so never within a mark."""

    def __init__(self) -> None:
        self._any = False

    def read(self, more: str) -> Iterator[Begun | str]:
        """What begins, and what is said in it; no text is empty."""
        text, place = "", 0
        for found in _MARKED.finditer(more):
            text += more[place : found.start()]
            place = found.end()
            if found[1]:
                text += MARK
                continue
            yield from self._said(text)
            text = ""
            yield self._begun(found[2] or "c", found[3])
        yield from self._said(text + more[place:])

    def _begun(self, letter: str, name: str | None) -> Begun:
        self._any = True
        return Begun(kind=KINDS[letter], function=json.loads(name) if name else "")

    def _said(self, text: str) -> Iterator[Begun | str]:
        if not text:
            return
        if not self._any:
            yield self._begun(LETTERS[ItemKind.MESSAGE], None)
        yield text


def parts(line: str) -> tuple[Part, ...]:
    """The items that are told in it, the last one as far as it was told; none has its ids."""
    read: list[Part] = []
    for told in Reader().read(line):
        match told:
            case Begun():
                read.append(Part(kind=told.kind, text="", function=told.function))
            case str():
                read[-1] = replace(read[-1], text=told)
    return tuple(read)


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    item: ItemId
    call: CallId | None = None


class Ids:
    """Those of an answer's items, in their order: known before it is, whichever process gives it."""

    def __init__(self, turn: TurnId, message: ItemId) -> None:
        self._name = turn.removeprefix("resp_")
        self._message = message
        self._counts = dict.fromkeys(LETTERS, 0)

    def next(self, kind: ItemKind) -> Named:
        self._counts[kind] += 1
        count = self._counts[kind]
        if kind is ItemKind.FUNCTION_CALL:
            return Named(item=ItemId(f"fc_{self._name}{count}"), call=CallId(f"call_{self._name}{count}"))
        first = self._message if kind is ItemKind.MESSAGE else ItemId(f"rs_{self._name}")
        return Named(item=first if count == 1 else ItemId(f"{first}_{count}"))

    def all(self, kinds: Iterable[ItemKind]) -> list[Named]:
        return [self.next(kind) for kind in kinds]
