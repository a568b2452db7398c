"""`everturn chat`: talk on a conversation; under each answer, which revision gave it and where its KV came from."""

import argparse
import contextlib
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from stack import tenant_api
from stack.commands.parsers import Commands
from stack.conversation_client import WAITING, ConversationClient, failure_of
from stack.errors import StackError
from stack.progress import CLEAR_LINE

HELP = "/fork goes on in a copy of this conversation, /quit ends; Ctrl-C cancels an answer. A line that begins with // is said with one."
SHOWN = 20
"""Of a revision: `rev_` and as many hex digits as tell two apart."""


def add(commands: Commands) -> None:
    chat = commands.add_parser("chat", help="talk on a conversation", description=__doc__, epilog=HELP)
    tenant_api.add_arguments(chat)
    chat.add_argument("--conversation", metavar="ID", help="go on with this one (default: a new one)")
    chat.add_argument("--model", metavar="ALIAS", help="of a new conversation (default: the service's own)")
    chat.add_argument(
        "--on-upgrade",
        choices=("replay", "stay", "stay_strict"),
        help="what its turns do where the model has moved on (default: as the conversation's policy says)",
    )
    chat.set_defaults(run=_chat)


def _chat(given: argparse.Namespace) -> int:
    options = {"model": given.model, "on_upgrade": given.on_upgrade}
    with tenant_api.client(given) as http:
        client = ConversationClient(http, new_key=lambda: uuid.uuid4().hex)
        if given.conversation:
            client.read(given.conversation)
        chat = Chat(
            client=client,
            options={name: value for name, value in options.items() if value is not None},
            conversation=given.conversation,
            answers=sys.stdout,
            notes=sys.stderr,
            alone=not sys.stdin.isatty(),
        )
        return chat.run(_typed() if sys.stdin.isatty() else map(str.rstrip, sys.stdin))


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415 makes input() a line editor; not every Python has it
    with contextlib.suppress(EOFError):
        while True:
            yield input("> ")


@dataclass(slots=True, kw_only=True)
class Chat:
    client: ConversationClient
    options: dict[str, str]
    conversation: str | None
    answers: TextIO
    notes: TextIO
    alone: bool
    """Nobody types: what goes wrong ends it."""
    waiting: bool = False
    """Whether the last line says what is being waited for."""

    def run(self, lines: Iterator[str]) -> int:
        try:
            for line in lines:
                if line.strip() == "/quit":
                    break
                if line.strip():
                    self._heed(line)
        except KeyboardInterrupt:
            if self.alone:
                raise
            self._note("")
        if self.conversation is not None:
            self._note(f"to go on: everturn chat --conversation {self.conversation}")
        return 0

    def _heed(self, line: str) -> None:
        try:
            if line.strip() == "/fork":
                self._fork()
            elif line.startswith("/") and not line.startswith("//"):
                self._note(f"no such command: {line.split(maxsplit=1)[0]}. {HELP}")
            else:
                self._say(line.removeprefix("/") if line.startswith("//") else line)
        except StackError as error:
            if self.alone:
                raise
            self._note(f"everturn: {error}")

    def _fork(self) -> None:
        if self.conversation is None:
            raise StackError("there is nothing to fork yet: say something first")
        self.conversation = str(self.client.fork(self.conversation)["id"])
        self._note(f"on {self.conversation} from here on; the other stays as it is")

    def _say(self, text: str) -> None:
        body = self.options | {"input": text}
        if self.conversation is not None:
            body["conversation"] = self.conversation
        try:
            response = self._answer(body)
        except KeyboardInterrupt:
            self.client.cancel()
            self._end_line()
            self._note("cancelled: neither your words nor the answer are in the conversation")
            if self.alone:
                raise
            return
        if response["status"] == "failed":
            raise failure_of(response)
        self._note(provenance(response))

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        for event in self.client.say(body):
            match event["type"]:
                case "response.created":
                    self.conversation = event["response"]["conversation"]["id"]
                case "response.output_text.delta":
                    self._clear()
                    self.answers.write(event["delta"])
                    self.answers.flush()
                case "response.completed" | "response.incomplete":
                    self._end_line()
                    return dict(event["response"])
                case "response.failed":
                    self._end_line()
                    return self._lost(event["response"])
                case "everturn.attempt":
                    self._note(f"  attempt {event['attempt']} takes over, on {event['revision'][:SHOWN]}")
                case "everturn.rebuild":
                    self._note(f"  rebuilding {event['tokens_total']} tokens on {event['revision'][:SHOWN]}")
                case kind if kind == WAITING and self.notes.isatty():
                    self._clear()
                    self.notes.write(f"  … {event['note']}")
                    self.notes.flush()
                    self.waiting = True
        raise StackError("the answer has no end")

    def _lost(self, response: dict[str, Any]) -> dict[str, Any]:
        """A stream that stops for want of its attempt leaves its turn running, and the next attempt answers in other words."""
        if (response.get("error") or {}).get("code") != "attempt_lost":
            return response
        self._note("  that attempt was lost; the answer is:")
        settled = self.client.settled(response["id"])
        parts = [
            part["text"] for item in settled["output"] for part in item.get("content", ()) if "text" in part
        ]
        self.answers.write("".join(parts))
        self._end_line()
        return settled

    def _end_line(self) -> None:
        self._clear()
        self.answers.write("\n")
        self.answers.flush()

    def _clear(self) -> None:
        if self.waiting:
            self.notes.write(CLEAR_LINE)
            self.notes.flush()
            self.waiting = False

    def _note(self, text: str) -> None:
        self._clear()
        self.notes.write(f"{text}\n")
        self.notes.flush()


def provenance(response: dict[str, Any]) -> str:
    """One line: what answered, and where its KV came from."""
    kv, usage = response["kv"], response.get("usage") or {}
    moved = " (another than before)" if response["revision_changed"] else ""
    told = [f"  {str(response['revision'])[:SHOWN]}{moved}"]
    told.append(f"kv {kv['source']}: {kv['tokens_loaded']} of {usage.get('input_tokens', 0)} tokens loaded")
    if kv["refusal"]:
        fields = ", ".join(kv["refusal"]["differing_fields"])
        told.append(f"refused: {kv['refusal']['reason']}{f' ({fields})' if fields else ''}")
    if response["status"] == "incomplete":
        told.append("cut short: it met its limit of tokens")
    return " · ".join(told)
