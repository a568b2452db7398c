import os
import socket

import pytest

from stack.errors import StackError
from stack.ports import find_free_port, require_free_port


def test_a_free_port_passes() -> None:
    require_free_port(find_free_port(), setting="EVERTURN_API_PORT")


def test_a_port_in_use_is_refused_with_the_setting_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port} .* is in use: .* EVERTURN_API_PORT"):
            require_free_port(port, setting="EVERTURN_API_PORT")


def test_a_connection_that_was_just_closed_does_not_block_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the server's side closes first, so its port is left in TIME_WAIT
        client.close()
    require_free_port(port, setting="EVERTURN_API_PORT")


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(StackError, match=r"not between 1 and 65535: set EVERTURN_API_PORT"):
        require_free_port(port, setting="EVERTURN_API_PORT")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may use every port")
def test_a_port_for_root_only_says_so() -> None:
    with pytest.raises(StackError, match="Permission denied"):
        require_free_port(1, setting="EVERTURN_API_PORT")


def test_a_machine_without_ipv4s_loopback_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stack.ports.LOOPBACK", "192.0.2.1")
    with pytest.raises(StackError, match=r"no port on 192\.0\.2\.1 can be used .* over IPv4's loopback"):
        find_free_port()
