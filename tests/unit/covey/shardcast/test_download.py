"""Downloads from sources that are slow, silent, false or gone. Times are a tenth of the real ones."""

import socket
import threading
import time
from collections import Counter
from contextlib import suppress

import pytest

from covey.errors import ProtocolError, TransientError
from covey.protocol.pieces import PIECE_BYTES
from covey.shardcast import download, source
from covey.shardcast.download import ATTEMPTS, Download, Job, Sources
from covey.shardcast.source_connection import LackingError
from tests.fakes.raw_server import RawServer, drip, respond

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("_GRACE_S", "_SILENCE_S", "_LONE_SILENCE_S", "_LOOK_S"):
        monkeypatch.setattr(download, name, getattr(download, name) / 10)
    for name in ("_REST_S", "_LONGEST_REST_S", "_LIE_REST_S", "_LONGEST_LIE_REST_S"):
        monkeypatch.setattr(source, name, getattr(source, name) / 10)


@pytest.fixture
def serve():
    """Return a function that starts a server."""
    servers = []

    def start(answer):
        servers.append(RawServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


class Bodies:
    """What the jobs of one test ask for, and what was kept of it."""

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

    def run(self, *servers, seed=0, threads=4, stop=None, on_look=lambda: None):
        self.sources = Sources([server.url for server in servers], seed=seed)
        before = threading.active_count()
        begun = time.monotonic()
        try:
            Download(self.sources, self.jobs, threads=threads, thing="the thing").run(stop, on_look)
        finally:
            self.seconds = time.monotonic() - begun
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


def stall(_, send):
    send(respond(b"", length=5000))
    time.sleep(5)


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
    assert empty.seconds < 0.5


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
    assert 1 <= len(liar.paths) <= 4  # Those that were under way when the first lie came.
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
    with pytest.raises(TransientError, match="sent something else: wrong bytes") as caught:
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
        raise LackingError("knows no route to it")

    bodies = Bodies([b"abc"])
    bodies.jobs = [Job("/0", None, 10, check)]
    with pytest.raises(TransientError, match="knows no route to it") as caught:
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
def test_source_that_stalls__is_left(serve, seed, is_size_known):
    bodies = Bodies([bytes([index]) * 5000 for index in range(1, 7)], is_size_known=is_size_known)
    bodies.run(serve(stall), serve(bodies.answer), seed=seed)
    bodies.require_all()
    assert bodies.seconds < 0.7


@pytest.mark.parametrize("size", [60_000, PIECE_BYTES])
@pytest.mark.parametrize("seed", range(3))
def test_two_sources_that_drip_and_a_good_one(serve, size, seed):
    """One hedge is not enough: both requests may be at sources that drip."""
    bodies = Bodies([b"a" * size] * 6)

    def answer(path, send):
        send(respond(b"", length=size))
        drip(send, bodies.bodies[path], rate=1000)

    bodies.run(serve(answer), serve(answer), serve(bodies.answer), seed=seed)
    bodies.require_all()
    assert bodies.seconds < 1.5


def test_two_sources_that_drip__size_unknown(serve):
    bodies = Bodies([b"a" * 60_000], is_size_known=False)

    def answer(path, send):
        send(respond(b"", length=60_000))
        drip(send, bodies.bodies[path], rate=1000)

    for seed in range(3):
        bodies.__init__([b"a" * 60_000], is_size_known=False)
        bodies.run(serve(answer), serve(answer), serve(bodies.answer), seed=seed, threads=2)
        bodies.require_all()
        assert bodies.seconds < 1.5


@pytest.mark.parametrize("number", [1, 2, 3])
def test_document_over_slow_links__gets_more_time_with_each_attempt(serve, monkeypatch, number):
    """It takes 0.6 s, and the first attempt may take 0.2 s. A lone source is not limited at all."""
    monkeypatch.setattr(download, "_DOCUMENT_S", 0.08)
    bodies = Bodies([b"a" * 120_000], is_size_known=False)

    def answer(path, send):
        send(respond(b"", length=120_000))
        drip(send, bodies.bodies[path], rate=200_000, step=2000)
        return True

    servers = [serve(answer) for _ in range(number)]
    bodies.run(*servers)
    bodies.require_all()
    assert sum(len(server.paths) for server in servers) <= 2 * number
    assert len(servers[0].paths) == 1 or number > 1


def test_lone_source_that_is_slow__finishes(serve):
    """50 kB/s for four connections, against a silence of 0.5 s: in real time, 5 kB/s against 5 s."""
    bodies = Bodies([b"a" * 12_500] * 4)

    def answer(path, send):
        send(respond(b"", length=12_500))
        drip(send, bodies.bodies[path], rate=12_500, step=500)
        return True

    bodies.run(serve(answer))
    bodies.require_all()
    assert bodies.sources.all[0].success == 1.0


def test_lone_source_that_waits_for_its_own_upstream__is_given_more_time_with_each_attempt(serve, monkeypatch):
    monkeypatch.setattr(download, "_LONE_SILENCE_S", 0.25)
    bodies, count = Bodies([b"abc"]), iter([0.4, 0.35, 0.0])

    def answer(path, send):
        time.sleep(next(count))  # Longer than 0.25 s, then shorter than twice that.
        return bodies.answer(path, send)

    server = serve(answer)
    bodies.run(server)
    bodies.require_all()
    assert len(server.paths) == 2


def test_much_slower_source__is_ended_although_bytes_flow(serve):
    bodies = Bodies([bytes([index]) * PIECE_BYTES for index in range(1, 9)])

    def answer(path, send):
        send(respond(b"", length=PIECE_BYTES))
        drip(send, bodies.bodies[path], rate=1e6)

    bodies.run(serve(answer), serve(bodies.answer))
    bodies.require_all()
    assert bodies.seconds < 2


def test_hedge__after_twice_the_median_time__and_the_first_answer_counts(serve, monkeypatch):
    """The median is 0.2 s, so the second source is asked after 0.4 s and not before."""
    bodies, times = Bodies([b"a" * 100]), {}

    def late(path, send):
        times["first"] = time.monotonic()
        time.sleep(2.0)
        bodies.answer(path, send)

    def answer(path, send):
        times["second"] = time.monotonic()
        return bodies.answer(path, send)

    slow, fast = serve(late), serve(answer)
    sources = Sources([slow.url, fast.url], seed=0)
    sources.durations.extend([0.1, 0.2, 5.0])
    sources.all[1].rests_until = sources.clock() + 0.05  # The first request goes to the other one.
    download_ = Download(sources, bodies.jobs, threads=2, thing="the thing")
    begun = time.monotonic()
    monkeypatch.setattr(download, "_SILENCE_S", 10.0)
    download_.run()
    bodies.require_all()
    assert 0.4 <= times["second"] - times["first"] < 1.5, "a busy machine takes its time"
    assert time.monotonic() - begun < 1.8
    slow.wait_until_idle()
    assert sources.all[0].success == pytest.approx(0.8)  # It had sent nothing when the other one was done.
    sources.close()


def test_both_answers_of_a_hedged_request__are_kept_once(serve):
    """The second source is asked because the first one is late, and then both send everything at one time."""
    bodies, both = Bodies([b"a" * 100, b"b" * 100]), {path: threading.Barrier(2) for path in ("/0", "/1")}

    def answer(path, send):
        with suppress(threading.BrokenBarrierError):
            both[path].wait(2)
        return bodies.answer(path, send)

    for _ in range(5):
        bodies.__init__([b"a" * 100, b"b" * 100])
        bodies.run(serve(answer), serve(answer))
        bodies.require_all()
    assert max(Counter(bodies.kept).values()) == 1


def test_defeated_request_to_a_host_that_does_not_answer__does_not_delay_the_end(serve):
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = [socket.socket() for _ in range(4)]
    for each in waiting:
        each.setblocking(False)
        each.connect_ex(listener.getsockname())
    hole = type("Hole", (), {"url": f"http://127.0.0.1:{listener.getsockname()[1]}"})
    try:
        for seed in range(4):
            bodies = Bodies([b"abc"])
            bodies.run(hole, serve(bodies.answer), seed=seed)
            bodies.require_all()
            assert bodies.seconds < 0.5
    finally:
        for each in (listener, *waiting):
            each.close()


def test_stop__ends_all_requests_at_once__and_is_no_fault_of_the_source(serve, bodies):
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    with pytest.raises(TransientError) as caught:
        bodies.run(serve(stall), stop=stop)
    assert caught.value.code == "stopped"
    assert bodies.seconds < 0.4
    assert bodies.sources.all[0].success == 1.0


def test_request_that_begins_while_the_download_is_stopped__is_ended_too(serve, bodies):
    """A connection that is taken just then forgets the first abort."""
    stop = threading.Event()
    stop.set()
    for _ in range(20):
        with pytest.raises(TransientError, match="stopped"):
            Bodies([b"a" * 5000] * 4).run(serve(stall), stop=stop)


def test_on_look__may_end_the_download(serve, bodies):
    def look():
        raise TransientError("obsolete", "a newer policy is out")

    with pytest.raises(TransientError) as caught:
        bodies.run(serve(stall), on_look=look)
    assert caught.value.code == "obsolete"
    assert bodies.seconds < 0.4


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

    partial, whole = serve(only_second), serve(bodies.answer)
    sources = Sources([partial.url, whole.url])
    sources.all[1].rests_until = sources.clock() + 0.3
    begun = time.monotonic()
    arrived = {}
    for job in bodies.jobs:
        inner = job.check
        job.check = lambda body, inner=inner, job=job: arrived.setdefault(job.path, time.monotonic()) and inner(body)
    Download(sources, bodies.jobs, threads=1, thing="the thing").run()
    bodies.require_all()
    assert arrived["/1"] - begun < 0.25 < arrived["/0"] - begun
    sources.close()


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
    monkeypatch.setattr(download, "MOST_DELAYS", 3)
    bodies = Bodies([b"abc"])

    def refuse(path, send):
        send(b"HTTP/1.1 429 X\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")
        return True

    with pytest.raises(TransientError, match="is too busy"):
        bodies.run(serve(refuse))
