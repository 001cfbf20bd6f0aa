"""An upstream that is late, silent or wrong, and connections that are reused."""

import threading
import time
import tracemalloc

import pytest

from covey.errors import OperatorError, TransientError
from covey.shardcast.upstream import Upstream
from tests.fakes.raw_server import HANG_S, RawServer, respond

pytestmark = pytest.mark.unit


class Clock:
    """Clock that always shows `now`."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def connect(clock):
    """Return a function that starts a server and returns an upstream for it."""
    opened = []

    def start(answer):
        server = RawServer(answer if callable(answer) else lambda _, send: send(answer) or True)
        upstream = Upstream(server.url, stall_s=2 * HANG_S, connect_s=HANG_S, clock=clock)
        opened.extend((server, upstream))
        return upstream, server

    yield start
    for each in opened:
        each.close()


def request(upstream, size=100, **options):
    return upstream.request("/x", memoryview(bytearray(size)), **options)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:80", "http://host:0", "http://a b"])
def test_url_that_is_none__is_refused(url):
    with pytest.raises(OperatorError) as caught:
        Upstream(url)
    assert caught.value.code == "bad_upstream"


@pytest.mark.parametrize("target", [100, memoryview(bytearray(100))], ids=["its own buffer", "a buffer"])
def test_answers__share_a_connection_whatever_their_status(connect, target):
    tagged = b'HTTP/1.1 200 X\r\netag: "5f"\r\ncontent-length: 3\r\n\r\nabc'
    answers = [tagged, b'HTTP/1.1 304 X\r\netag: "5f"\r\n\r\n', respond(b"no", 404), respond(b"no", 500), tagged]
    upstream, server = connect(lambda _, send: send(answers.pop(0)) or True)
    replies = [upstream.request("/x", target, etag=etag) for etag in (None, '"5f"', None)]
    assert [(reply.status, bytes(reply.body), reply.etag) for reply in replies] == [
        (200, b"abc", '"5f"'),
        (304, b"", '"5f"'),
        (404, b"", None),
    ]
    with pytest.raises(TransientError, match="answered with status 500") as caught:
        request(upstream)
    assert (caught.value.code, upstream.failures) == ("upstream_failed", 1)
    assert (upstream.received_bytes, upstream.failed_requests) == (3, 1)
    assert request(upstream).status == 200
    assert server.connections == 1


@pytest.mark.parametrize("status", [200, 404])
def test_answer_without_a_buffer__takes_as_much_memory_as_has_arrived(connect, status):
    """A hostile head may name thousands of documents of up to 32 MiB each."""
    upstream, _ = connect(respond(b"abc", status))
    tracemalloc.start()
    try:
        reply = upstream.request("/x", 32 << 20)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert bytes(reply.body) == (b"abc" if status == 200 else b"")


def test_failures__are_cleared_by_right_bytes_or_after_a_minute_and_not_by_an_answer(connect, clock):
    """Otherwise an upstream that only answers requests for heads would be asked first for everything else."""
    upstream, _ = connect(respond(b"abc"))
    for clear in (upstream.succeed, lambda: setattr(clock, "now", clock.now + 61)):
        upstream.fail()
        request(upstream)
        assert upstream.failures == 1
        clear()
        request(upstream)
        assert upstream.failures == 0


def test_repeated_silence__is_a_pause__and_an_error_is_not(connect, clock):
    upstream, server = connect(respond(b"", 500))
    for _ in range(5):
        with pytest.raises(TransientError):
            request(upstream)
    assert not upstream.is_paused
    server.answer = lambda _, send: None
    for count in range(1, 4):
        with pytest.raises(TransientError) as caught:
            request(upstream)
        assert caught.value.code == "upstream_unreachable"
        assert upstream.is_paused == (count == 3)
    clock.now += 1
    assert not upstream.is_paused
    server.answer = lambda _, send: send(respond(b"abc")) or True
    assert bytes(request(upstream).body) == b"abc"


def test_rate__is_measured_with_large_answers_only(connect, clock):
    def answer(path, send):
        clock.now += 0.5
        return send(respond(bytes(bodies.pop(0)))) or True

    bodies = [1000, 1 << 20]
    upstream, _ = connect(answer)
    before = upstream.rate
    request(upstream, size=1 << 20)
    assert upstream.rate == before
    request(upstream, size=1 << 20)
    assert upstream.rate == pytest.approx(0.8 * before + 0.2 * (2 << 20))


def run_stalled(upstream, server):
    """Start a request that stalls in its body. Returns its thread and the list that receives its error."""
    errors = []

    def work():
        try:
            request(upstream, size=1000)
        except TransientError as error:
            errors.append(error.code)

    server.answer = lambda _, send: send(respond(b"a" * 10, length=1000)) or server.is_closed.wait(2 * HANG_S)
    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + HANG_S
    while not server.paths:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return thread, errors


def test_abort_overdue__ends_a_request_after_its_deadline_and_not_before(connect, clock):
    upstream, server = connect(b"")
    thread, errors = run_stalled(upstream, server)
    clock.now = 10.0  # The deadline is 10 s plus 8 times 1 ms for 1,000 bytes.
    upstream.abort_overdue()
    thread.join(0.1)
    assert thread.is_alive()
    clock.now = 10.1
    upstream.abort_overdue()
    thread.join(HANG_S)
    assert errors == ["upstream_unreachable"]


def test_close__ends_a_request__and_there_is_no_other(connect):
    upstream, server = connect(b"")
    thread, errors = run_stalled(upstream, server)
    upstream.close()
    thread.join(HANG_S)
    assert errors == ["upstream_unreachable"]
    with pytest.raises(TransientError):
        request(upstream)
