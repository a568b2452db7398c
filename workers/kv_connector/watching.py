"""How the scheduler side asks after the weights, which lie in another process: a socket that only processes of its user get an answer from."""

import logging
import os
import socket
import struct
import time
from threading import Thread
from typing import Self

from service.domain.artifact import BootId
from service.domain.errors import InvalidInput
from workers.kv_connector.weights_watch import WeightsWatch

logger = logging.getLogger("vllm.everturn")

QUESTION = b"?"
ANSWER = struct.Struct("<Qd")
"""How many changes, and for how many seconds that serves."""
PATIENCE_S = 2.0
PEER = struct.Struct("3i")


def address_of(boot: BootId, rank: int) -> str:
    """Of Linux's abstract kind: it goes with its process, and is no file."""
    return f"\0everturn-{boot}-{rank}"


class WatchServer:
    """On the worker side."""

    def __init__(self, address: str, watch: WeightsWatch) -> None:
        self._watch = watch
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(address)
        self._listening.listen()
        Thread(target=self._serve, name="everturn-watch", daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                asking, _ = self._listening.accept()
            except OSError:  # closed
                return
            if _user_of(asking) == os.geteuid():
                Thread(target=self._answer, args=[asking], name="everturn-watch", daemon=True).start()
            else:
                asking.close()

    def _answer(self, asking: socket.socket) -> None:
        with asking:
            try:
                while asking.recv(len(QUESTION)):
                    asking.send(ANSWER.pack(*self._watch.glance()))
            except Exception:  # whoever asked finds the connection closed, and takes that for no answer
                logger.exception("Everturn cannot look at its weights")


class WatchClient:
    """On the scheduler side, and of its one thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: socket.socket | None = None
        self._changes = 0
        self._serves_until = 0.0

    def required(self) -> Self:
        """Raises: InvalidInput, where nobody answers."""
        try:
            self.changes()
        except OSError as error:
            raise InvalidInput(
                f"The worker cannot be asked after its weights ({error}): rank 0 must run on the machine of the engine's core.",
                "weights",
            ) from error
        return self

    def changes(self) -> int:
        """How often the weights were found changed in place. Raises: OSError."""
        if time.monotonic() >= self._serves_until:
            try:
                self._ask()
            except OSError:
                self._disconnect()
                raise
        return self._changes

    def _ask(self) -> None:
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._connection.settimeout(PATIENCE_S)
            self._connection.connect(self._address)
        asked_at = time.monotonic()
        self._connection.send(QUESTION)
        answer = self._connection.recv(ANSWER.size)
        if len(answer) != ANSWER.size:
            raise ConnectionResetError("the worker cannot look at its weights")
        self._changes, serves_s = ANSWER.unpack(answer)
        self._serves_until = asked_at + serves_s

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _user_of(asking: socket.socket) -> int:
    peer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    return int(PEER.unpack(peer)[1])
