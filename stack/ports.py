"""TCP ports on the loopback interface: is one free, and which one is."""

import errno
import socket

from stack.errors import StackError

LOOPBACK = "127.0.0.1"
LARGEST = 65535


def require_free_port(port: int, *, setting: str) -> None:
    """Raises StackError, naming the setting to change, when nothing could listen on this port."""
    if not 0 < port <= LARGEST:
        raise StackError(f"port {port} is not between 1 and {LARGEST}: set {setting} to one that is")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections in TIME_WAIT are no obstacle, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            cause = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise StackError(
                f"port {port} on {LOOPBACK} {cause}: stop what uses it, or set {setting} to a free port"
            ) from error


def find_free_port() -> int:
    """A port that was free a moment ago; whoever binds it first has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, 0))
        except OSError as error:
            raise StackError(
                f"no port on {LOOPBACK} can be used ({error.strerror}): the stack's parts talk over IPv4's loopback; "
                "bring it up (`ip address show lo` lists its addresses)"
            ) from error
        port: int = probe.getsockname()[1]
        return port
