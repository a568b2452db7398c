"""That a road holds up and loses what it should: else nothing is broken, and all is well."""

import socket
from collections.abc import Iterator

import pytest

from tests.faults.road import Road, Way

PATIENCE_S = 20.0
SILENT_S = 0.3


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(PATIENCE_S)
        yield made


@pytest.fixture
def road(listener: socket.socket) -> Iterator[Road]:
    with Road(lambda: int(listener.getsockname()[1])) as made:
        yield made


@pytest.fixture
def ends(road: Road, listener: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Client and server of one connection, which has carried something both ways."""
    with socket.create_connection(("127.0.0.1", road.port), PATIENCE_S) as client:
        server, _ = listener.accept()
        with server:
            server.settimeout(PATIENCE_S)
            for source, target in ((client, server), (server, client)):
                source.sendall(b"hello")
                assert target.recv(5) == b"hello"
            yield client, server


def is_silent(end: socket.socket) -> bool:
    end.settimeout(SILENT_S)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(PATIENCE_S)
    return False


@pytest.mark.parametrize("way", Way)
def test_what_is_held_up_comes_later_and_the_other_way_is_free(
    road: Road, ends: tuple[socket.socket, socket.socket], way: Way
) -> None:
    source, target = ends if way is Way.THERE else ends[::-1]
    with road.held(way):
        source.sendall(b"late")
        target.sendall(b"soon")
        assert source.recv(4) == b"soon"
        assert is_silent(target)
    assert target.recv(4) == b"late"


def test_an_end_that_closes_meanwhile_is_not_missed_until_then(
    road: Road, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    with road.held(Way.THERE):
        client.close()
        assert is_silent(server)
    assert server.recv(1) == b""


def test_a_lost_connection_swallows_all_and_says_nothing_until_it_is_over(
    road: Road, ends: tuple[socket.socket, socket.socket]
) -> None:
    client, server = ends
    with road.lost():
        client.sendall(b"gone")
        server.sendall(b"gone")
        assert is_silent(server)
        assert is_silent(client)
        server.shutdown(socket.SHUT_RDWR)
        assert is_silent(client)
    assert client.recv(1) == b""


def test_a_new_connection_passes_where_others_are_lost(
    road: Road, ends: tuple[socket.socket, socket.socket], listener: socket.socket
) -> None:
    with road.lost(), socket.create_connection(("127.0.0.1", road.port), PATIENCE_S) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"hello")
            assert server.recv(5) == b"hello"


def test_a_road_to_nobody_ends_at_once(road: Road, listener: socket.socket) -> None:
    listener.close()
    with socket.create_connection(("127.0.0.1", road.port), PATIENCE_S) as client:
        assert client.recv(1) == b""
