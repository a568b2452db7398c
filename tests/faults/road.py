"""A road of TCP between two processes, on which one direction can be held up, and open connections be made to lead nowhere."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Self

from tests.chaos.wire import cut

CHUNK_BYTES = 65536


class Way(StrEnum):
    THERE = "there"
    """From whoever connected."""
    BACK = "back"


class Passage:
    """One connection, from end to end."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.lost = False
        """What is sent into either end is gone, and neither end learns what becomes of the other."""
        self._ends = (client, server)

    def cut(self) -> None:
        cut(self._ends)

    def close(self) -> None:
        for end in self._ends:
            end.close()


class Road:
    """Listens on a port of 127.0.0.1. `leads_to`: a port of it, asked for at each connection."""

    def __init__(self, leads_to: Callable[[], int]) -> None:
        self._leads_to = leads_to
        self.carried = 0
        """Messages or parts of them, so far: whoever keeps a connection comes by again without making one."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._passages: set[Passage] = set()
        self._open = {way: threading.Event() for way in Way}
        for way in self._open.values():
            way.set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for passage in self._now():
            passage.cut()

    @contextmanager
    def held(self, way: Way) -> Iterator[None]:
        """Nothing passes that way; all of it arrives afterwards, as TCP sends again what was lost."""
        self._open[way].clear()
        try:
            yield
        finally:
            self._open[way].set()

    @contextmanager
    def lost(self) -> Iterator[None]:
        """Of what is open now, until both ends are told that it is over, as keepalives find out."""
        lost = self._now()
        for passage in lost:
            passage.lost = True
        try:
            yield
        finally:
            for passage in lost:
                passage.cut()

    def _now(self) -> tuple[Passage, ...]:
        with self._lock:
            return tuple(self._passages)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket()
        passage = Passage(client, server)
        try:
            server.connect(("127.0.0.1", self._leads_to()))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            passage.close()  # nobody is there
            return
        with self._lock:
            self._passages.add(passage)
        back = threading.Thread(target=self._pump, args=(passage, Way.BACK, server, client), daemon=True)
        back.start()
        self._pump(passage, Way.THERE, client, server)
        back.join()
        with self._lock:
            self._passages.discard(passage)
        passage.close()

    def _pump(self, passage: Passage, way: Way, source: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := source.recv(CHUNK_BYTES):
                self._open[way].wait()
                with self._lock:
                    self.carried += 1
                if not passage.lost:
                    target.sendall(chunk)
        except OSError:
            pass  # either end is gone; so is the other then
        self._open[way].wait()
        if not passage.lost:
            passage.cut()
