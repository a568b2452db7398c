"""A proxy of PostgreSQL's wire protocol that counts messages, and at a chosen one springs a trap before or after it passes."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

CHUNK_BYTES = 65536
PROTOCOL_MAJOR = 3
SHOWN_LETTERS = 60
AROUND_THE_WORK = ("BEGIN", "COMMIT", "ROLLBACK")


class Side(StrEnum):
    FRONTEND = "frontend"
    BACKEND = "backend"


class Moment(StrEnum):
    BEFORE = "before"
    AFTER = "after"


def _tags(pairs: str) -> dict[bytes, str]:
    return {tag.encode(): name for tag, name in (pair.split("=") for pair in pairs.split())}


KINDS = {
    Side.FRONTEND: _tags(
        "Q=Query P=Parse B=Bind D=Describe E=Execute S=Sync C=Close X=Terminate p=Password H=Flush"
    ),
    Side.BACKEND: _tags(
        "R=Authentication S=ParameterStatus K=BackendKeyData Z=ReadyForQuery 1=ParseComplete 2=BindComplete "
        "3=CloseComplete T=RowDescription D=DataRow C=CommandComplete E=ErrorResponse N=NoticeResponse n=NoData "
        "t=ParameterDescription I=EmptyQueryResponse"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One that was counted, and the statement it belongs to."""

    number: int
    side: Side
    kind: str
    statement: str

    def __str__(self) -> str:
        return f"{self.number}: {self.side} {self.kind} of {self.statement}"


def cut(ends: Iterable[socket.socket]) -> None:
    for end in ends:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # the other side was quicker


class Session:
    """One connection, as far as its messages tell."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.application = ""
        self.backend_pid = 0
        self._ends = (client, server)
        self._prepared: dict[str, str] = {}
        self._statement = "connecting"
        self._work = "nothing"

    def read(self, side: Side, raw: bytes, *, first: bool) -> tuple[str, str]:
        """The kind of a message, and the statement it belongs to."""
        if first:
            self._read_startup(raw)
            return "Startup", self._statement
        tag, body = raw[:1], raw[5:]
        if side is Side.FRONTEND:
            self._read_request(tag, body)
        elif tag == b"K":
            self.backend_pid = int.from_bytes(body[:4])
        return KINDS[side].get(tag, repr(tag)), self._named()

    def cut(self) -> None:
        cut(self._ends)

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def _read_startup(self, raw: bytes) -> None:
        if int.from_bytes(raw[4:6]) != PROTOCOL_MAJOR:
            return  # a request to cancel
        fields = raw[8:].split(b"\0")
        given = dict(zip(fields[::2], fields[1::2], strict=False))
        self.application = given.get(b"application_name", b"").decode()

    def _read_request(self, tag: bytes, body: bytes) -> None:
        names = body.split(b"\0", 2)
        match tag:
            case b"Q":
                self._begin(_shown(names[0]))
            case b"P":
                self._prepared[names[0].decode()] = _shown(names[1])
                self._begin(self._prepared[names[0].decode()])
            case b"B":
                self._begin(self._prepared.get(names[1].decode(), "an unknown statement"))
            case _:
                return

    def _begin(self, statement: str) -> None:
        self._statement = statement
        if not statement.startswith(AROUND_THE_WORK):
            self._work = statement

    def _named(self) -> str:
        ends = self._statement.startswith(("COMMIT", "ROLLBACK"))
        return f"{self._statement} after {self._work}" if ends else self._statement


Spring = Callable[[Session], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    due: Callable[[Sequence[Message]], bool]
    """Given all that was counted, the message in question last."""
    moment: Moment
    spring: Spring
    """Called between two messages: none of any connection passes meanwhile. The connection is cut afterwards."""


@dataclass(slots=True, kw_only=True)
class Watch:
    """What is counted from its beginning on, of the connections of some applications."""

    applications: tuple[str, ...]
    """By the beginnings of their names."""
    trap: Trap | None
    passed: list[Message] = field(default_factory=list)
    sprung: threading.Event = field(default_factory=threading.Event)
    at: Message | None = None
    """Where it was sprung."""
    moved: threading.Event = field(default_factory=threading.Event)
    """Set by each message that passes, for those who wait for quiet."""


class WireProxy:
    """Listens on a port of 127.0.0.1, and connects to a server's socket, which may come and go."""

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._watch: Watch | None = None
        self._flowing = {side: threading.Event() for side in Side}
        for flowing in self._flowing.values():
            flowing.set()
        self._commit_s = 0.0
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        self.cut_all()

    def watch(self, *applications: str, trap: Trap | None = None) -> Watch:
        """In place of the watch before."""
        made = Watch(applications=applications, trap=trap)
        with self._lock:
            self._watch = made
        return made

    def unwatch(self) -> None:
        with self._lock:
            self._watch = None

    @contextmanager
    def silence(self, *sides: Side) -> Iterator[None]:
        """Connections stay as they are, and nothing passes that is said by these sides, or by either."""
        chosen = [self._flowing[side] for side in sides or Side]
        for flowing in chosen:
            flowing.clear()
        try:
            yield
        finally:
            for flowing in chosen:
                flowing.set()

    @contextmanager
    def slow_commits(self, for_s: float) -> Iterator[None]:
        """Each is held up by itself, and its transaction keeps its locks meanwhile: as on a disk that takes so long to sync."""
        self._commit_s = for_s
        try:
            yield
        finally:
            self._commit_s = 0.0

    def cut_all(self) -> None:
        with self._lock:
            sessions = tuple(self._sessions)
        for session in sessions:
            session.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        session = Session(client, server)
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server.connect(str(self._upstream))
        except OSError:
            session.close()  # as a port nobody listens on
            return
        with self._lock:
            self._sessions.add(session)
        answers = threading.Thread(
            target=self._pump, args=(session, Side.BACKEND, server, client), daemon=True
        )
        answers.start()
        self._pump(session, Side.FRONTEND, client, server)
        answers.join()
        with self._lock:
            self._sessions.discard(session)
        session.close()

    def _pump(self, session: Session, side: Side, source: socket.socket, target: socket.socket) -> None:
        try:
            for raw, first in whole_messages(source, startup=side is Side.FRONTEND):
                self._pass(session, side, raw, target, first=first)
        except OSError:
            pass  # either end is gone; so is the other then
        session.cut()

    def _pass(self, session: Session, side: Side, raw: bytes, target: socket.socket, *, first: bool) -> None:
        self._flowing[side].wait()
        kind, statement = session.read(side, raw, first=first)
        if self._commit_s and kind in {"Query", "Bind"} and statement.startswith("COMMIT"):
            time.sleep(self._commit_s)
        with self._lock:
            watch = self._watch
            if watch is not None and session.application.startswith(watch.applications):
                number = len(watch.passed) + 1
                watch.passed.append(Message(number=number, side=side, kind=kind, statement=statement))
                watch.moved.set()
                if watch.trap is not None and not watch.sprung.is_set() and watch.trap.due(watch.passed):
                    self._spring(watch, watch.trap, session, raw, target)
                    return
        target.sendall(raw)

    @staticmethod
    def _spring(watch: Watch, trap: Trap, session: Session, raw: bytes, target: socket.socket) -> None:
        if trap.moment is Moment.AFTER:
            target.sendall(raw)
        trap.spring(session)
        session.cut()
        watch.at = watch.passed[-1]
        watch.sprung.set()


def whole_messages(source: socket.socket, *, startup: bool) -> Iterator[tuple[bytes, bool]]:
    """Until the end of the stream; the startup message, which has no tag, is told by True."""
    buffer = bytearray()
    while chunk := source.recv(CHUNK_BYTES):
        buffer += chunk
        while (length := _length(buffer, tag=0 if startup else 1)) is not None:
            yield bytes(buffer[:length]), startup
            del buffer[:length]
            startup = False


def _length(buffer: bytearray, *, tag: int) -> int | None:
    if len(buffer) < tag + 4:
        return None
    length = tag + int.from_bytes(buffer[tag : tag + 4])
    return length if len(buffer) >= length else None


def _shown(statement: bytes) -> str:
    return " ".join(statement.decode(errors="replace").split())[:SHOWN_LETTERS]
