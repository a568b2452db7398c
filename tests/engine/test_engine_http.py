"""What of HTTP could cost or double a turn, against servers that do what each test says with each connection."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from service.engine import engine_http
from service.engine.engine_http import AT_ONCE_BYTES, BrokeOff, EngineHttp

PATIENCE_S = 20.0
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(slots=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: "Server"

    async def request(self) -> bytes | None:
        """Its head and body; None once the client has closed."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        length = next(
            (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), b":0"
        )
        whole = head + await self.reader.readexactly(int(length.partition(b":")[2]))
        self.server.requests.append(whole)
        return whole

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, body: bytes, *, status: str = "200 OK", more: str = "") -> None:
        head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{more}\r\n"
        await self.say(head.encode() + body)


Handler = Callable[[Connection], Awaitable[None]]


@dataclass(slots=True)
class Server:
    url: str = ""
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """A client has closed before its answer's end."""


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            await handler(Connection(reader, writer, server))
        except ConnectionError:
            server.left.set()
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    async with listening:
        yield server


async def keep_answering(connection: Connection) -> None:
    while await connection.request() is not None:
        await connection.answer(b"well")


async def answer_first_alone(connection: Connection) -> None:
    """A second request on the same connection is taken, and the connection closed."""
    await connection.request()
    await connection.answer(b"well")
    await connection.request()


async def first_line_alone(connection: Connection) -> None:
    await connection.request()
    await connection.say(CHUNKED + chunk(b"data: 1\n\n"))
    assert await connection.reader.read() == b""
    connection.server.left.set()


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def said(*pieces: bytes) -> Handler:
    """One after the other, each in a write of its own; the connection is closed after them."""

    async def handler(connection: Connection) -> None:
        await connection.request()
        for piece in pieces:
            await connection.say(piece)
            await asyncio.sleep(0.01)

    return handler


async def post(http: EngineHttp, server: Server, **body: object) -> bytes:
    return (await http.post(server.url, headers={"x-test": "yes"}, body=body)).body


async def lines_of(http: EngineHttp, server: Server) -> list[str]:
    found = list[str]()
    async with http.stream(server.url, headers={}, body={}) as answer:
        while lines := await answer.lines():
            found += lines
    return found


async def test_a_request_goes_out_as_json_with_its_headers() -> None:
    async with serving(keep_answering) as server, EngineHttp(silence_s=20) as http:
        assert await post(http, server, text="\u00e4") == b"well"
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert body == '{"text":"\u00e4"}'.encode()
    told = head.lower()
    assert b"\r\ncontent-type: application/json" in told
    assert b"\r\nx-test: yes" in told
    assert b"\r\naccept-encoding: identity" in told


async def test_what_is_not_200_comes_with_its_body() -> None:
    async def refuse(connection: Connection) -> None:
        await connection.request()
        await connection.answer(b"no", status="409 Conflict")

    async with serving(refuse) as server, EngineHttp(silence_s=20) as http:
        reply = await http.post(server.url, headers={}, body={})
    assert (reply.status, reply.body) == (409, b"no")


async def test_requests_share_a_connection() -> None:
    async with serving(keep_answering) as server, EngineHttp(silence_s=20) as http:
        for _ in range(3):
            await post(http, server)
    assert (server.connections, len(server.requests)) == (1, 3)


async def test_a_post_whose_connection_broke_off_is_not_sent_again() -> None:
    async with serving(answer_first_alone) as server, EngineHttp(silence_s=20) as http:
        await post(http, server)
        with pytest.raises(BrokeOff):
            await post(http, server)
    assert (server.connections, len(server.requests)) == (1, 2)


async def test_a_get_whose_old_connection_broke_off_is_sent_once_more() -> None:
    async with serving(answer_first_alone) as server, EngineHttp(silence_s=20) as http:
        await post(http, server)
        assert (await http.get(server.url)).body == b"well"
    assert (server.connections, len(server.requests)) == (2, 3)


async def test_a_connection_that_was_closed_meanwhile_is_not_used() -> None:
    closed = asyncio.Event()

    async def answer_one(connection: Connection) -> None:
        await connection.request()
        await connection.answer(b"well")
        connection.writer.close()
        await connection.writer.wait_closed()
        closed.set()

    async with serving(answer_one) as server, EngineHttp(silence_s=20) as http:
        await post(http, server)
        await closed.wait()
        await asyncio.sleep(0.1)
        assert await post(http, server) == b"well"
    assert server.connections == 2


async def test_a_stream_that_was_read_to_its_last_word_leaves_its_connection_to_the_next() -> None:
    async def stream(connection: Connection) -> None:
        while await connection.request() is not None:
            await connection.say(CHUNKED + chunk(b"data: [DONE]\n\n"))
            await asyncio.sleep(0.02)
            await connection.say(chunk(b""))

    async with serving(stream) as server, EngineHttp(silence_s=20) as http:
        for _ in range(2):
            async with http.stream(server.url, headers={}, body={}) as answer:
                assert await answer.lines() == ["data: [DONE]", ""]
                await answer.settle()
    assert (server.connections, len(server.requests)) == (1, 2)


async def test_an_end_that_does_not_come_is_not_waited_for() -> None:
    async with serving(first_line_alone) as server, EngineHttp(silence_s=20) as http:
        async with http.stream(server.url, headers={}, body={}) as answer:
            await answer.lines()
            await asyncio.wait_for(answer.settle(), PATIENCE_S / 2)
        await asyncio.wait_for(server.left.wait(), PATIENCE_S)


async def test_leaving_a_stream_closes_its_connection() -> None:
    async with serving(first_line_alone) as server, EngineHttp(silence_s=20) as http:
        async with http.stream(server.url, headers={}, body={}) as answer:
            assert await answer.lines() == ["data: 1", ""]
        await asyncio.wait_for(server.left.wait(), PATIENCE_S)


@pytest.mark.parametrize("began", [False, True], ids=["before its answer", "in its answer"])
async def test_a_request_that_is_cancelled_closes_its_connection(*, began: bool) -> None:
    asked = asyncio.Event()

    async def wait(connection: Connection) -> None:
        await connection.request()
        if began:
            await connection.say(CHUNKED + chunk(b"data: 1\n\n"))
        asked.set()
        assert await connection.reader.read() == b""
        connection.server.left.set()

    async with serving(wait) as server, EngineHttp(silence_s=20) as http:
        task = asyncio.create_task(lines_of(http, server))
        await asked.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.left.wait(), PATIENCE_S)


@pytest.mark.parametrize("first", [b"", CHUNKED, CHUNKED + chunk(b"data: 1\n")])
async def test_an_engine_that_falls_silent_is_given_up(first: bytes) -> None:
    async def fall_silent(connection: Connection) -> None:
        await connection.request()
        await connection.say(first)
        await connection.reader.read()

    async with serving(fall_silent) as server, EngineHttp(silence_s=0.2) as http:
        with pytest.raises(BrokeOff, match="Timeout"):
            await asyncio.wait_for(lines_of(http, server), PATIENCE_S)


async def test_one_that_does_not_even_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_http, "CONNECT_S", 0.2)
    over = asyncio.Event()

    async def read_nothing(_: Connection) -> None:
        await over.wait()

    async with serving(read_nothing) as server, EngineHttp(silence_s=0.2) as http:
        with pytest.raises(BrokeOff, match="Timeout"):
            await asyncio.wait_for(post(http, server, text="x" * 2**25), PATIENCE_S)
        over.set()


async def test_one_that_goes_on_speaking_is_not_given_up() -> None:
    pieces = [chunk(b"data: 1\n")] * 8
    async with serving(said(CHUNKED, *pieces, chunk(b""))) as server, EngineHttp(silence_s=5) as http:
        assert await lines_of(http, server) == ["data: 1"] * 8


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"no HTTP at all\r\n\r\n",),
        (CHUNKED, chunk(b"data: 1\n")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut",),
    ],
    ids=["nothing", "no HTTP", "no end", "too short"],
)
async def test_an_answer_that_is_not_whole_is_none(pieces: tuple[bytes, ...]) -> None:
    async with serving(said(*pieces)) as server, EngineHttp(silence_s=20) as http:
        with pytest.raises(BrokeOff):
            await lines_of(http, server)
        with pytest.raises(BrokeOff):
            await post(http, server)


async def test_a_dead_address_is_told() -> None:
    async with EngineHttp(silence_s=20) as http:
        with pytest.raises(BrokeOff, match=r"127\.0\.0\.1:1"):
            await http.get("http://127.0.0.1:1/")


async def test_an_engine_that_nobody_vouches_for_is_asked_nothing(tmp_path: Path) -> None:
    server = Server()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=self_signed(tmp_path))
    url = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    async with listening, EngineHttp(silence_s=20) as http:
        with pytest.raises(BrokeOff, match="CERTIFICATE_VERIFY_FAILED"):
            await http.post(url, headers={}, body={})
    assert server.connections == 0


def self_signed(folder: Path) -> ssl.SSLContext:
    key, name = (
        generate_private_key(SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "engine")]),
    )
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    own = (
        made.not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
    )
    file = folder / "own.pem"
    file.write_bytes(
        own.sign(key, SHA256()).public_bytes(Encoding.PEM)
        + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


async def test_a_redirect_is_an_answer_like_any_other() -> None:
    async def redirect(connection: Connection) -> None:
        while await connection.request() is not None:
            await connection.answer(b"", status="307 Temporary Redirect", more="location: /else\r\n")

    async with serving(redirect) as server, EngineHttp(silence_s=20) as http:
        assert (await http.get(server.url)).status == 307
        assert (await http.post(server.url, headers={}, body={})).status == 307
    assert len(server.requests) == 2


async def test_cookies_are_not_kept() -> None:
    async def give(connection: Connection) -> None:
        while await connection.request() is not None:
            await connection.answer(b"", more="set-cookie: who=me\r\n")

    async with serving(give) as server, EngineHttp(silence_s=20) as http:
        # A jar takes none from an address without a name.
        server.url = server.url.replace("127.0.0.1", "localhost")
        await post(http, server)
        await post(http, server)
    assert b"cookie" not in server.requests[1].lower()


async def test_a_proxy_of_the_environment_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    async with serving(keep_answering) as server, EngineHttp(silence_s=20) as http:
        assert await post(http, server) == b"well"


async def test_a_line_ends_where_sse_has_its_end_alone() -> None:
    line = 'data: {"text":"a\u2028b\u2029c\x85d\x0be"}'
    told = f"{line}\n\n".encode()
    cut = told.index("\u2028".encode()) + 1
    pieces = [CHUNKED, chunk(told[:cut]), chunk(told[cut:] + b"data: 2"), chunk(b"")]
    async with serving(said(*pieces)) as server, EngineHttp(silence_s=20) as http:
        assert await lines_of(http, server) == [line, "", "data: 2"]


async def test_a_line_may_be_as_long_as_a_prompt_is() -> None:
    line = b"data: " + b"1," * 2**19
    async with (
        serving(said(CHUNKED, chunk(line + b"\n"), chunk(b""))) as server,
        EngineHttp(silence_s=20) as http,
    ):
        assert await lines_of(http, server) == [line.decode()]


async def test_so_may_a_request() -> None:
    text = "x" * (2 * AT_ONCE_BYTES)
    async with serving(keep_answering) as server, EngineHttp(silence_s=20) as http:
        assert await post(http, server, text=text) == b"well"
    assert server.requests[0].endswith(f'{{"text":"{text}"}}'.encode())
