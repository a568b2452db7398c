"""`everturn import`: conversations from elsewhere, as JSON lines, each made once however often it is run."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from stack import tenant_api
from stack.commands.parsers import Commands
from stack.errors import StackError
from stack.transcript_entries import BadLine, Entry, as_item, is_same
from stack.transcript_file import Transcript, read_transcripts

AT_ONCE = 20
"""Items that one request may bring."""
PAGE = 100
SHOWN_ERRORS = 20
TRIES = 6
SAY_EVERY_S = 2.0
MOVED_ON = 412
AGAIN = (429, 503)


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "import",
        help="bring conversations in from JSON lines",
        description=__doc__,
        epilog='A line: {"id": "…", "metadata": {…}, "messages": [{"role": "user", "content": "…"}, …]}; id and '
        "metadata may be left out, and messages may be function calls, their outputs and reasoning. Nothing is imported while a line of the file is wrong. Printed is, for each line, "
        "the conversation that it became. Stopped half way, it is run again.",
    )
    parser.add_argument("file", type=Path)
    tenant_api.add_arguments(parser)
    parser.add_argument("--alias", help="that they go on with (default: the service's own)")
    parser.add_argument("--dry-run", action="store_true", help="only look whether every line can be imported")
    parser.set_defaults(run=_import)


def _import(given: argparse.Namespace) -> int:
    found = _check(given.file)
    if given.dry_run:
        print(f"{given.file}: {found}; every line can be imported", file=sys.stderr)
        return 0
    with tenant_api.client(given) as http:
        importer = Importer(http=http, alias=given.alias, sleep=time.sleep)
        spoke = time.monotonic()
        for done, transcript in enumerate(_good(given.file), 1):
            try:
                conversation = importer.bring(transcript)
            except StackError as error:
                raise StackError(
                    f"{given.file}:{transcript.line}: {error} ({done - 1} of {found.conversations} are imported; run it "
                    "again to go on: none is made twice)"
                ) from error
            print(
                json.dumps({"line": transcript.line, "id": transcript.id, "conversation": conversation}),
                flush=True,
            )
            if time.monotonic() - spoke > SAY_EVERY_S:
                spoke = time.monotonic()
                print(f"{done} of {found.conversations} conversations", file=sys.stderr)
    print(f"imported {found}", file=sys.stderr)
    return 0


@dataclass(slots=True, kw_only=True)
class Found:
    """In a file whose every line can be imported."""

    conversations: int = 0
    messages: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        told = f"{self.conversations} conversations, {self.messages} messages"
        left_out = ", ".join(f"'{name}' of {count}" for name, count in sorted(self.left_out.items()))
        return f"{told}, without {left_out}" if left_out else told


def _check(file: Path) -> Found:
    """Raises:
    StackError: lines that cannot be imported, the first of them each named.
    """
    found, wrong = Found(), list[str]()
    for line in read_transcripts(file):
        if isinstance(line, BadLine):
            wrong.append(str(line))
        else:
            found.conversations += 1
            found.messages += len(line.messages)
            found.left_out.update(line.left_out)
    if wrong:
        more = [f"and {len(wrong) - SHOWN_ERRORS} more"] if len(wrong) > SHOWN_ERRORS else []
        raise StackError("nothing was imported\n" + "\n".join([*wrong[:SHOWN_ERRORS], *more]))
    return found


def _good(file: Path) -> Iterator[Transcript]:
    for found in read_transcripts(file):
        if isinstance(found, BadLine):
            raise found
        yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    http: httpx.Client
    alias: str | None
    sleep: Callable[[float], None]

    def bring(self, transcript: Transcript) -> str:
        """Returns the conversation, with all of its messages, whether some of it was there before or not.

        Raises:
            StackError: refused, or there with other messages.
        """
        first, rest = transcript.messages[:AT_ONCE], transcript.messages[AT_ONCE:]
        body: dict[str, Any] = {"items": [as_item(one) for one in first], "metadata": transcript.metadata}
        if self.alias is not None:
            body["alias"] = self.alias
        answer = self._send(
            "POST", "/v1/conversations", json=body, headers={"idempotency-key": transcript.key}
        )
        conversation = str(tenant_api.checked(answer)["id"])
        if rest:
            self._complete(conversation, transcript.messages)
        return conversation

    def _complete(self, conversation: str, messages: Sequence[Entry]) -> None:
        """Adds what is not there yet, in their order also where another import of the same file does so too."""
        path, have, last = f"/v1/conversations/{conversation}", 0, ""
        while True:
            head = self._send("GET", path)
            tenant_api.checked(head)
            for item in self._items(path, last):
                if have < len(messages) and not is_same(item, messages[have]):
                    raise StackError(
                        f"{conversation} has another message than this line as its number {have + 1}: it was talked on "
                        "before it was whole, or the line has changed"
                    )
                have, last = have + 1, item["id"]
            if have >= len(messages):
                return
            added = [as_item(one) for one in messages[have : have + AT_ONCE]]
            answer = self._send(
                "POST", f"{path}/items", json={"items": added}, headers={"if-match": head.headers["etag"]}
            )
            if answer.status_code != MOVED_ON:
                tenant_api.checked(answer)

    def _items(self, path: str, after: str) -> Iterator[dict[str, Any]]:
        while True:
            query = {"order": "asc", "limit": str(PAGE)} | ({"after": after} if after else {})
            page = tenant_api.checked(self._send("GET", f"{path}/items", params=query))
            yield from page["data"]
            if not page["has_more"]:
                return
            after = page["last_id"]

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Again where the service is busy or cannot be reached: nothing that is sent here does anything twice."""
        for number in range(1, TRIES):
            try:
                answer = self.http.request(method, path, **options)
            except httpx.TransportError:
                self.sleep(number)
                continue
            if answer.status_code not in AGAIN:
                return answer
            self.sleep(float(answer.headers.get("retry-after", number)))
        try:
            return self.http.request(method, path, **options)
        except httpx.TransportError as error:
            raise tenant_api.unreachable(self.http, error) from error
