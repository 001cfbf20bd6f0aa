"""One connection to servers that break the protocol."""

import socket
import ssl
import subprocess
import threading
import time
from contextlib import suppress

import pytest

from covey.shardcast.source_connection import (
    BusyError,
    Connection,
    DeliveryError,
    LackingError,
    SilentError,
    UnchangedError,
)
from tests.fakes.raw_server import HANG_S, RawServer, respond

pytestmark = pytest.mark.unit
PLAIN = b"HTTP/1.1 200 X\r\n"


def chunk(*bodies):
    return b"".join(f"{len(b):x}\r\n".encode() + b + b"\r\n" for b in bodies)


@pytest.fixture
def connect():
    """Return a function that starts a server and returns a connection to it."""
    opened = []

    def start(answer, prefix=""):
        server = RawServer(answer if callable(answer) else lambda _, send: send(answer))
        opened.append(server)
        connection = Connection(server.url + prefix, connect_s=HANG_S, silence_s=2 * HANG_S)
        opened.append(connection)
        return connection, server

    yield start
    for each in opened:
        each.close()


def get_into(connection, size):
    target = memoryview(bytearray(size))
    connection.get_into("/x", target)
    return bytes(target)


def get(connection, size):
    return bytes(connection.get("/x", size))


def get_within(connection, size):
    return bytes(connection.get_within("/x", memoryview(bytearray(size))))


@pytest.mark.parametrize(
    "answer",
    [
        respond(b"abc"),
        PLAIN + b"\r\nabc",
        PLAIN + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"a", b"bc", b""),
        b"HTTP/1.1 100 Continue\r\n\r\n" + respond(b"abc"),
    ],
    ids=["length", "until the end", "chunked", "continue"],
)
def test_whole_body(connect, answer):
    connection, server = connect(answer, "/prefix/")
    assert bytes(connection.get("/x", 3)) == b"abc"
    assert get_into(connection, 3) == b"abc"
    assert [get_within(connection, size) for size in (3, 10)] == [b"abc"] * 2
    assert connection.received == 3
    assert server.paths == ["/prefix/x"] * 4


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (respond(b"", 404), LackingError, "does not have it"),
        (respond(b"", 429), BusyError, "is too busy"),
        (b"HTTP/1.1 302 X\r\nlocation: http://127.0.0.1:1/\r\n\r\n", DeliveryError, "status 302"),
        (b"HTTP/1.1 204 X\r\n\r\n", DeliveryError, "status 204"),
        (b"", SilentError, "RemoteDisconnected"),
        (b"garbage\r\n\r\n", SilentError, "BadStatusLine"),
        (b"HTTP/1.1 two hundred\r\n\r\n", SilentError, "BadStatusLine"),
        (b"HTTP/1.1 200 X\r\nx: " + b"y" * 70_000, SilentError, "LineTooLong"),
        (PLAIN + b"a: b\r\n" * 120 + b"\r\n", SilentError, "more than 100 headers"),
        (PLAIN + b"transfer-encoding: chunked\r\n\r\nzz\r\n", SilentError, "broke off"),
        (PLAIN + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"ab"), SilentError, "broke off"),
        (respond(b"ab", length=3), SilentError, "broke off"),
        (respond(b"abcd"), DeliveryError, "4 bytes"),
        (PLAIN + b"\r\nabcd", DeliveryError, "more than 3 bytes"),
        (PLAIN + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"abcd", b""), DeliveryError, "more than 3 bytes"),
        (respond(b"", length=1 << 60), DeliveryError, str(1 << 60)),
    ],
)
@pytest.mark.parametrize("method", [get, get_into, get_within])
def test_anything_else__is_an_error__and_the_next_request_uses_a_new_connection(connect, answer, kind, text, method):
    answers = [answer, respond(b"abc")]
    connection, server = connect(lambda _, send: send(answers.pop(0)))
    with pytest.raises(DeliveryError, match=text) as caught:
        method(connection, 3)
    assert type(caught.value) is kind
    assert get_into(connection, 3) == b"abc"
    assert server.connections == 2


def test_get_into__a_body_that_is_too_short_is_refused_before_it_is_read(connect):
    connection, _ = connect(respond(b"ab"))
    with pytest.raises(DeliveryError, match="offers 2 bytes instead of 3"):
        get_into(connection, 3)


def test_huge_content_length__nothing_is_read_or_allocated(connect):
    sent = []

    def answer(_, send):
        send(respond(b"", length=1 << 40))
        for _ in range(1000):
            send(b"x" * (1 << 16))
            sent.append(1 << 16)

    connection, server = connect(answer)
    with pytest.raises(DeliveryError, match="at most 100 are allowed"):
        connection.get("/x", 100)
    server.wait_until_idle()
    assert sum(sent) < 16 << 20  # The kernel's buffers take this much.
    assert connection.received == 0


def test_endless_body__is_ended_at_the_limit(connect):
    connection, server = connect(lambda _, send: [send(PLAIN + b"\r\n")] + [send(b"x" * 1000) for _ in range(100_000)])
    with pytest.raises(DeliveryError, match="more than 5000 bytes"):
        connection.get("/x", 5000)
    with pytest.raises(DeliveryError, match="more than 5000 bytes"):
        get_into(connection, 5000)
    server.wait_until_idle()


def test_progress__is_visible_with_every_byte(connect):
    """Progress shows that a source is slow and not silent, so bytes must count before a body is complete."""
    go = threading.Semaphore(0)

    def answer(_, send):
        send(respond(b"", length=30))
        for _ in range(3):
            go.acquire()
            send(b"x" * 10)
        return True

    connection, _ = connect(answer)
    for work in (lambda: connection.get("/x", 30), lambda: get_into(connection, 30)):
        connection.received = 0
        thread = threading.Thread(target=work)
        thread.start()
        for count in range(3):
            deadline = time.monotonic() + HANG_S
            while connection.received < 10 * count:
                assert time.monotonic() < deadline, f"{connection.received} instead of {10 * count} bytes"
                time.sleep(0.002)
            go.release()
        thread.join(HANG_S)
        assert not thread.is_alive()


def test_kept_connection__is_used_again__and_opened_again_when_the_server_has_closed_it(connect):
    connection, server = connect(lambda _, send: send(respond(b"abc")) or True)
    for _ in range(3):
        assert get_into(connection, 3) == b"abc"
        assert bytes(connection.get("/x", 10)) == b"abc"
    assert server.connections == 1
    server.drop_connections()
    server.wait_until_idle()
    assert get_into(connection, 3) == b"abc"
    assert server.connections == 2


@pytest.mark.parametrize("status", [404, 429, 500])
def test_kept_connection__is_used_again_after_a_small_error(connect, status):
    answers = [respond(b'{"code":"x"}', status), respond(b"abc")]
    connection, server = connect(lambda _, send: send(answers.pop(0)) or True)
    with pytest.raises(DeliveryError):
        get_into(connection, 3)
    assert get_into(connection, 3) == b"abc"
    assert server.connections == 1


def test_etag__is_known_after_an_answer__and_304_says_that_nothing_has_changed(connect):
    answers = [
        b'HTTP/1.1 200 X\r\netag: "5f"\r\ncontent-length: 3\r\n\r\nabc',
        b'HTTP/1.1 304 X\r\netag: "5f"\r\n\r\n',
        respond(b"abc"),
    ]
    connection, server = connect(lambda _, send: send(answers.pop(0)) or True)
    assert get_within(connection, 3) == b"abc"
    assert connection.etag == '"5f"'
    with pytest.raises(UnchangedError):
        connection.get_within("/x", memoryview(bytearray(3)), etag='"5f"')
    assert b'if-none-match: "5f"\r\n' in server.heads[-1] + b"\r\n"
    assert get_within(connection, 3) == b"abc"
    assert connection.etag is None
    assert server.connections == 1


def test_server_that_closes_every_kept_connection_without_an_answer__is_asked_twice_and_no_more(connect):
    answers = [respond(b"abc"), b"", b"", b""]

    def answer(_, send):
        send(answers.pop(0))
        return len(answers) == 3

    connection, server = connect(answer)
    assert get_into(connection, 3) == b"abc"
    with pytest.raises(SilentError, match="RemoteDisconnected"):
        get_into(connection, 3)
    assert len(server.paths) == 3


@pytest.mark.parametrize("before", [b"", PLAIN, respond(b"a" * 10, length=1000)], ids=["nothing", "status", "body"])
def test_abort__ends_a_request_at_once_from_another_thread(connect, before):
    connection, server = connect(lambda _, send: send(before) or server.is_closed.wait(2 * HANG_S))
    abort_and_check(connection, server)


@pytest.mark.parametrize("header", [b"", b"connection: close\r\ncontent-length: 1000\r\n"], ids=["no size", "close"])
def test_abort__answer_after_which_the_server_will_close__ends_it_too(connect, header):
    connection, server = connect(
        lambda _, send: send(b"HTTP/1.1 200 X\r\n" + header + b"\r\nabc") or server.is_closed.wait(2 * HANG_S)
    )
    abort_and_check(connection, server, received=3)


def abort_and_check(connection, server, *, received=0):
    caught = []

    def work():
        try:
            get_into(connection, 1000)
        except DeliveryError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + HANG_S
    while not server.paths or connection.received < received:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    connection.abort()
    thread.join(HANG_S)
    assert not thread.is_alive(), "it waits for a server that stalls"
    (error,) = caught
    assert type(error) is SilentError
    assert str(error) == "was too slow"


@pytest.fixture
def secure_server(tmp_path, monkeypatch):
    """Return a server with a certificate that this process trusts."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=127.0.0.1"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(command.split(), check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with RawServer(lambda _, send: send(respond(b"abc")) or True, context=context) as server:
        yield server


def test_tls__bodies_and_abort(secure_server):
    connection = Connection(secure_server.url, connect_s=HANG_S, silence_s=2 * HANG_S)
    assert get_into(connection, 3) == b"abc"
    secure_server.answer = lambda _, send: (
        send(respond(b"a" * 10, length=1000)) or secure_server.is_closed.wait(2 * HANG_S)
    )
    abort_and_check(connection, secure_server)
    connection.close()


def test_tls__bytes_that_arrive_after_an_abort_are_not_taken_for_the_body(secure_server):
    """Otherwise the reader would receive the ciphertext that the kernel still holds."""
    sent = threading.Event()
    connection = Connection(secure_server.url, connect_s=HANG_S, silence_s=2 * HANG_S)

    def answer(_, send):
        send(respond(b"a" * 10, length=1010))
        sent.wait(HANG_S)
        send(b"b" * 1000)
        secure_server.is_closed.wait(2 * HANG_S)

    secure_server.answer = answer
    target = memoryview(bytearray(1010))
    with connection._request("/x") as response:
        assert response.fp.readinto1(target[:10]) == 10
        sent.set()
        time.sleep(0.05)
        connection.abort()
        with suppress(OSError):
            response.fp.readinto(target[10:])
    connection.close()
    assert bytes(target[10:]) in (b"b" * 1000, bytes(1000))


def test_abort__without_a_request__does_nothing_to_the_next_one(connect):
    connection, _ = connect(lambda _, send: send(respond(b"abc")) or True)
    connection.abort()
    assert get_into(connection, 3) == b"abc"
    connection.abort()
    assert get_into(connection, 3) == b"abc"


def test_nobody_listens__is_silence():
    with RawServer(lambda *_: None) as server:
        url = server.url
    connection = Connection(url)
    with pytest.raises(SilentError, match="ConnectionRefusedError"):
        connection.get("/x", 10)


@pytest.fixture
def blackhole():
    """Return the URL of a host that does not answer connection attempts."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    address, waiting = listener.getsockname(), []
    for _ in range(4):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(address)
    yield f"http://127.0.0.1:{address[1]}"
    for each in (listener, *waiting):
        each.close()


def abort_early(connection):
    caught = []

    def work():
        try:
            connection.get("/x", 10)
        except DeliveryError as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    deadline = time.monotonic() + HANG_S
    while thread.is_alive():  # Like a download: a connection that starts a request clears an earlier abort.
        assert time.monotonic() < deadline, "it waits for a host that does not answer"
        connection.abort()
        thread.join(0.01)
    assert [str(error) for error in caught] == ["was too slow"]


def test_abort__ends_a_connection_attempt_at_once(blackhole):
    abort_early(Connection(blackhole, connect_s=2 * HANG_S))


def test_abort__ends_a_handshake_at_once():
    with RawServer(lambda *_: None) as server:  # The server waits for an HTTP request.
        abort_early(Connection(server.url.replace("http://", "https://"), connect_s=2 * HANG_S))


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(b"2.5", 2.5), (b"0", 0.1), (b"1e300", 30.0), (b"nan", 1.0), (b"tomorrow", 1.0), (None, 1.0)],
)
def test_busy__waits_as_long_as_the_source_asks__within_reason(connect, header, seconds):
    line = b"" if header is None else b"retry-after: " + header + b"\r\n"
    answer = b"HTTP/1.1 429 X\r\ncontent-length: 0\r\n" + line + b"\r\n"
    connection, _ = connect(lambda _, send: send(answer))
    with pytest.raises(BusyError) as caught:
        connection.get("/x", 3)
    assert caught.value.wait_s == seconds
