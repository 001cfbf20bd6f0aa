"""Downloads from sources that are slow, silent, false or gone.

The clock of these tests stops while a healthy source is asked, so times do not depend on the machine.
"""

import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest

from covey.errors import ProtocolError, TransientError
from covey.protocol.pieces import PIECE_BYTES
from covey.shardcast import download
from covey.shardcast.download import ATTEMPTS, Download, Job
from covey.shardcast.source_connection import Connection, LackingError
from tests.fakes.raw_server import HANG_S, RawServer, drip, respond
from tests.fakes.standing_clock import StandingSources

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Remove the pause between two checks of the requests. The clock moves with each check."""
    monkeypatch.setattr(download, "_LOOK_SECONDS", 0.002)


@pytest.fixture
def serve():
    """Return a function that starts a server. The clock moves only while a server with `is_slow` is asked."""
    servers = []

    def start(answer, *, is_slow=False):
        servers.append(RawServer(answer))
        servers[-1].is_slow = is_slow
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def stall():
    """Return an answer that starts and never continues."""
    released = threading.Event()

    def answer(_, send):
        send(respond(b"", length=5000))
        released.wait(2 * HANG_S)

    yield answer
    released.set()


class Bodies:
    """Resources that the jobs of one test request, and the bodies that were kept."""

    def __init__(self, bodies, *, is_size_known=True):
        self.bodies, self.kept = {f"/{index}": body for index, body in enumerate(bodies)}, []
        size = len if is_size_known else lambda _: None
        self.jobs = [Job(path, size(body), len(body), self._check(path)) for path, body in self.bodies.items()]

    def _check(self, path):
        def check(body):
            if body != self.bodies[path]:
                raise ProtocolError("bad_piece", "wrong bytes", status=502)
            data = bytes(body)
            return lambda: self.kept.append((path, data))

        return check

    def answer(self, path, send):
        send(respond(self.bodies[path.partition("?")[0]]))
        return True

    def lie(self, path, send):
        send(respond(bytes(len(self.bodies[path.partition("?")[0]]))))
        return True

    def connect(self, *servers, seed=0):
        urls, slow = [server.url for server in servers], [server.url for server in servers if server.is_slow]
        self.sources = StandingSources(urls, slow=slow, seed=seed)

    def drip(self, path, send, *, rate, step):
        """Send a body at `rate` bytes/s by the clock of the sources."""
        send(respond(b"", length=len(self.bodies[path])))
        sources, begun = self.sources, self.sources.now
        for start in range(0, len(self.bodies[path]), step):
            send(self.bodies[path][start : start + step])
            sources.wait_until(begun + (start + step) / rate)
        return True

    def run(self, *servers, seed=0, threads=4, stop=None, on_look=lambda: None):
        """Download from `servers`, or from the sources that are already connected. Sets `seconds` to the duration."""
        if servers:
            self.connect(*servers, seed=seed)
        before = threading.active_count()
        begun = time.monotonic()
        try:
            Download(self.sources, self.jobs, threads=threads, thing="the thing").run(stop, on_look)
        finally:
            self.seconds = self.sources.now
            assert time.monotonic() - begun < HANG_S, "it has waited for a source that stalls"
            names = [thread.name for thread in threading.enumerate() if thread.name.startswith("download")]
            assert not names, f"{len(names)} threads are left of {before}"
            self.sources.close()

    def require_all(self):
        assert sorted(self.kept) == sorted(self.bodies.items())


@pytest.fixture
def bodies():
    return Bodies([bytes([index]) * 5000 for index in range(1, 13)])


def absent(_, send):
    send(respond(b"", 404))


@pytest.mark.parametrize("threads", [1, 4, 40])
def test_one_source__all_are_kept_once__over_few_connections(serve, bodies, threads):
    server = serve(bodies.answer)
    bodies.run(server, threads=threads)
    bodies.require_all()
    assert len(server.paths) == 12
    assert server.connections <= min(threads, 13)
    assert bodies.sources.all[0].delivered == 60_000


def test_nothing_to_do__ends_at_once(serve):
    empty = Bodies([])
    empty.run(serve(absent))
    assert empty.seconds < 1


def test_several_sources__share_the_work(serve, bodies):
    servers = [serve(bodies.answer) for _ in range(3)]
    bodies.run(*servers)
    bodies.require_all()
    assert all(server.paths for server in servers)


def test_liar__is_left_for_the_other_source__and_never_kept(serve, bodies):
    liar, honest = serve(bodies.lie), serve(bodies.answer)
    bodies.run(liar, honest)
    bodies.require_all()
    assert not liar.count("/0?verify") + sum("verify" in path for path in liar.paths)
    assert 1 <= len(liar.paths) <= 4  # These requests were in flight when the first wrong body arrived.
    assert bodies.sources.all[0].success < 0.3


def test_lone_relay_with_damage__is_asked_to_verify(serve):
    bodies = Bodies([b"abc" * 1000])
    server = serve(lambda path, send: bodies.answer(path, send) if "verify=1" in path else bodies.lie(path, send))
    bodies.run(server)
    bodies.require_all()
    assert server.paths == ["/0", "/0?verify=1"]


def test_lone_liar__is_given_up_after_two_lies(serve):
    bodies = Bodies([b"abc"])
    server = serve(bodies.lie)
    with pytest.raises(TransientError, match="sent wrong bytes: wrong bytes") as caught:
        bodies.run(server)
    assert caught.value.code == "no_relay"
    assert server.paths == ["/0", "/0?verify=1"]


def test_liar__asked_again_only_when_the_others_have_failed(serve):
    bodies = Bodies([b"abc"])
    liar = serve(lambda path, send: bodies.answer(path, send) if "verify=1" in path else bodies.lie(path, send))
    silent = serve(lambda path, send: send(respond(b"", 500)))
    for seed in range(2):
        bodies.__init__([b"abc"])
        liar.paths.clear(), silent.paths.clear()
        bodies.run(liar, silent, seed=seed)
        bodies.require_all()
        assert liar.paths == ["/0", "/0?verify=1"]
        assert len(silent.paths) <= 3


def test_absent_everywhere__each_is_asked_once(serve):
    bodies = Bodies([b"abc"])
    servers = [serve(absent) for _ in range(3)]
    with pytest.raises(TransientError, match="no relay has the thing") as caught:
        bodies.run(*servers)
    assert caught.value.code == "not_at_relays"
    assert [len(server.paths) for server in servers] == [1, 1, 1]


def test_source_that_knows_too_little__counts_as_lacking(serve):
    def check(_):
        raise LackingError("knows no route to the policy")

    bodies = Bodies([b"abc"])
    bodies.jobs = [Job("/0", None, 10, check)]
    with pytest.raises(TransientError, match="knows no route to the policy") as caught:
        bodies.run(serve(bodies.answer))
    assert caught.value.code == "not_at_relays"
    assert bodies.sources.all[0].success == 1.0


def test_absent_at_one_and_failing_at_another__is_no_relay(serve):
    bodies = Bodies([b"abc"])
    failing = serve(lambda _, send: send(respond(b"", 500)))
    with pytest.raises(TransientError, match="answered with status 500") as caught:
        bodies.run(serve(absent), failing)
    assert caught.value.code == "no_relay"
    assert len(failing.paths) == 3


def test_nobody_listens__is_no_relay__with_a_remedy(serve):
    server = serve(absent)
    server.close()
    bodies = Bodies([b"abc"])
    with pytest.raises(TransientError, match=r"ConnectionRefusedError.*Start a relay") as caught:
        bodies.run(server)
    assert caught.value.code == "no_relay"


def test_secrets_of_a_url__are_not_in_the_error(serve):
    bodies = Bodies([b"abc"])
    server = serve(absent)
    server.url = server.url.replace("http://", "http://user:secret@")
    with pytest.raises(TransientError) as caught:
        bodies.run(server)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_size_known", [True, False])
def test_source_that_stalls__is_left(serve, stall, seed, is_size_known):
    bodies = Bodies([bytes([index]) * 5000 for index in range(1, 7)], is_size_known=is_size_known)
    bodies.run(serve(stall, is_slow=True), serve(bodies.answer), seed=seed)
    bodies.require_all()
    assert bodies.seconds < 7


@pytest.mark.parametrize("size", [60_000, PIECE_BYTES])
@pytest.mark.parametrize("seed", range(3))
def test_two_sources_that_drip_and_a_good_one(serve, size, seed):
    """One hedge is not enough, because both requests may be at slow sources."""
    bodies = Bodies([b"a" * size] * 6)

    def answer(path, send):
        send(respond(b"", length=size))
        drip(send, bodies.bodies[path], rate=100)

    dripping = [serve(answer, is_slow=True) for _ in range(2)]
    bodies.run(*dripping, serve(bodies.answer), seed=seed)
    bodies.require_all()
    assert bodies.seconds < 15


def test_two_sources_that_drip__size_unknown(serve):
    bodies = Bodies([b"a" * 60_000], is_size_known=False)

    def answer(path, send):
        send(respond(b"", length=60_000))
        drip(send, bodies.bodies[path], rate=100)

    for seed in range(3):
        bodies.__init__([b"a" * 60_000], is_size_known=False)
        dripping = [serve(answer, is_slow=True) for _ in range(2)]
        bodies.run(*dripping, serve(bodies.answer), seed=seed, threads=2)
        bodies.require_all()
        assert bodies.seconds < 15


@pytest.mark.parametrize("number", [1, 2, 3])
def test_document_over_slow_links__gets_more_time_with_each_attempt(serve, monkeypatch, number):
    """The document takes 6 s, but the first attempt may take only 3.1 s. A single source has no limit."""
    monkeypatch.setattr(download, "_SILENCE_SECONDS", 1000.0)
    bodies = Bodies([b"a" * 120_000], is_size_known=False)
    answer = partial(bodies.drip, rate=20_000, step=1000)
    servers = [serve(answer, is_slow=True) for _ in range(number)]
    bodies.run(*servers)
    bodies.require_all()
    assert sum(len(server.paths) for server in servers) <= 2 * number
    assert len(servers[0].paths) == 1 or number > 1


def test_lone_source_that_is_slow__finishes(serve):
    """Each of four connections gets 5 kB/s, and the silence limit is 5 s."""
    bodies = Bodies([b"a" * 12_500] * 4)
    bodies.run(serve(partial(bodies.drip, rate=1250, step=500), is_slow=True))
    bodies.require_all()
    assert bodies.sources.all[0].success == 1.0


def test_lone_source_that_waits_for_its_own_upstream__is_given_more_time_with_each_attempt(serve):
    bodies, seconds = Bodies([b"abc"]), iter([8.0, 7.0, 0.0])

    def answer(path, send):
        bodies.sources.wait_until(
            bodies.sources.now + next(seconds)
        )  # Above the limit of 5 s, then below the doubled limit.
        return bodies.answer(path, send)

    server = serve(answer, is_slow=True)
    bodies.run(server)
    bodies.require_all()
    assert len(server.paths) == 2


def test_much_slower_source__is_ended_although_bytes_flow(serve):
    bodies = Bodies([bytes([index]) * PIECE_BYTES for index in range(1, 9)])
    slow = serve(partial(bodies.drip, rate=20_000, step=1000), is_slow=True)
    bodies.run(slow, serve(bodies.answer))
    bodies.require_all()
    assert bodies.seconds < 20, "a body of the slow source takes 210 s"


def test_hedge__after_twice_the_median_time__and_the_first_answer_counts(serve, monkeypatch):
    """The median is 2 s, so the second source is asked after 4 s and not earlier."""
    bodies = Bodies([b"a" * 100])
    slow, fast = serve(lambda *_: slow.is_closed.wait(2 * HANG_S), is_slow=True), serve(bodies.answer)
    bodies.connect(slow, fast)
    sources = bodies.sources
    sources.durations.extend([1.0, 2.0, 50.0])
    sources.all[1].rests_until = 1.0  # The first request goes to the other one.
    monkeypatch.setattr(download, "_SILENCE_SECONDS", 100.0)
    bodies.run(threads=2)
    bodies.require_all()
    (first, first_at), (second, second_at) = sources.begun
    assert (first, second) == (slow.url, fast.url)
    assert 4.0 <= second_at - first_at < 6.0
    assert sources.all[0].success == pytest.approx(0.8)  # This source had sent nothing when the other one finished.


def test_both_answers_of_a_hedged_request__are_kept_once(serve, monkeypatch):
    """The second source is asked because the first one is late. Then both send the whole body simultaneously."""
    monkeypatch.setattr(download, "_SILENCE_SECONDS", 1000.0)
    bodies, both = Bodies([b"a" * 100, b"b" * 100]), {path: threading.Barrier(2) for path in ("/0", "/1")}

    def answer(path, send):
        with suppress(threading.BrokenBarrierError):
            both[path].wait(HANG_S)
        return bodies.answer(path, send)

    for _ in range(5):
        bodies.__init__([b"a" * 100, b"b" * 100])
        bodies.run(*(serve(answer, is_slow=True) for _ in range(2)))
        bodies.require_all()
        assert max(Counter(bodies.kept).values()) == 1
    assert not any(barrier.broken for barrier in both.values())


def test_defeated_request_to_a_host_that_does_not_answer__does_not_delay_the_end(serve, monkeypatch):
    monkeypatch.setattr(download, "Connection", partial(Connection, connect_s=2 * HANG_S))
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())
    hole = type("Hole", (), {"url": f"http://127.0.0.1:{listener.getsockname()[1]}", "is_slow": True})
    try:
        for seed in range(4):
            bodies = Bodies([b"abc"])
            bodies.run(hole, serve(bodies.answer), seed=seed)
            bodies.require_all()
            assert bodies.seconds < 5
    finally:
        for each in (listener, *waiting):
            each.close()


def test_stop__ends_all_requests_at_once__and_is_no_fault_of_the_source(serve, stall, bodies):
    stop, server = threading.Event(), serve(stall)
    with pytest.raises(TransientError) as caught:
        bodies.run(server, stop=stop, on_look=lambda: len(server.paths) == 4 and stop.set())
    assert caught.value.code == "stopped"
    assert bodies.sources.all[0].success == 1.0


def test_request_that_begins_while_the_download_is_stopped__is_ended_too(serve, stall):
    """A connection that starts a request clears an earlier abort."""
    stop = threading.Event()
    stop.set()
    for _ in range(20):
        with pytest.raises(TransientError, match="stopped"):
            Bodies([b"a" * 5000] * 4).run(serve(stall), stop=stop)


def test_on_look__may_end_the_download(serve, stall, bodies):
    def look():
        raise TransientError("obsolete", "a newer policy is out")

    with pytest.raises(TransientError) as caught:
        bodies.run(serve(stall), on_look=look)
    assert caught.value.code == "obsolete"


def test_keep_fails__ends_all(serve):
    def check(_):
        def keep():
            raise OSError(28, "No space left on device")

        return keep

    bodies = Bodies([b"abc"] * 8)
    bodies.jobs[3].check = check
    with pytest.raises(OSError, match="No space left"):
        bodies.run(serve(bodies.answer))
    assert len(bodies.kept) <= 7


def test_source_that_rests_while_another_lacks_the_first_job__others_go_on(serve):
    bodies = Bodies([b"a" * 100, b"b" * 100])

    def only_second(path, send):
        return bodies.answer(path, send) if path == "/1" else send(respond(b"", 404))

    lacking, whole = serve(only_second), serve(bodies.answer)
    bodies.connect(lacking, whole)
    bodies.sources.all[1].rests_until = 3.0
    bodies.run(threads=1)
    bodies.require_all()
    *others, (last, last_at) = bodies.sources.begun
    assert [url for url, _ in others] == [lacking.url] * 2
    assert last == whole.url
    assert others[-1][1] < 3.0 <= last_at


def test_busy_source__is_asked_again_after_a_while__without_counting_as_a_failure(serve):
    bodies, refusals = Bodies([b"abc"]), []

    def answer(path, send):
        if len(refusals) < 3 * ATTEMPTS:
            refusals.append(path)
            send(b"HTTP/1.1 429 X\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")
            return True
        return bodies.answer(path, send)

    bodies.run(serve(answer))
    assert [path for path, _ in bodies.kept] == ["/0"]
    assert bodies.sources.all[0].success == 1.0


def test_source_that_is_always_busy__is_given_up(serve, monkeypatch):
    monkeypatch.setattr(download, "MAX_DELAYS", 3)
    bodies = Bodies([b"abc"])

    def refuse(path, send):
        send(b"HTTP/1.1 429 X\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")
        return True

    with pytest.raises(TransientError, match="is too busy"):
        bodies.run(serve(refuse))
