"""The public interface of downloads: URLs of sources, documents and pieces, and the results of a document's check."""

import threading
import time
from contextlib import closing

import pytest

from covey.errors import ProtocolError, TransientError
from covey.protocol.pieces import Piece, compute_blake3
from covey.shardcast import download, source
from covey.shardcast import downloader as module
from covey.shardcast.downloader import Downloader
from covey.shardcast.source_connection import LackingError
from tests.fakes.raw_server import HANG_S, RawServer, respond
from tests.fakes.standing_clock import StandingSources

pytestmark = pytest.mark.unit
BODIES = [bytes([index]) * (100 + index) for index in range(20)]
PIECES = [Piece(len(body), compute_blake3(body)) for body in BODIES]
BY_PATH = {f"/pieces/{piece.digest}": body for piece, body in zip(PIECES, BODIES, strict=True)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorten the rest after a wrong body, and remove the pause between two checks of the requests."""
    monkeypatch.setattr(download, "_LOOK_SECONDS", 0.002)
    monkeypatch.setattr(source, "_LONGEST_LIE_REST_SECONDS", 0.01)


@pytest.fixture
def server():
    def answer(path, send):
        send(respond(BY_PATH.get(path, path.encode())))
        return True

    with RawServer(answer) as started:
        yield started


@pytest.fixture
def downloader(server):
    downloader = Downloader([server.url])
    yield downloader
    downloader.close()


def test_urls_of_strangers__valid_ones_once__at_least_one():
    urls = ["http://a/", "http://a", "nonsense", "ftp://b", "http://[::1", "https://c:1/x/"]
    assert [each.url for each in Downloader(urls).sources] == ["http://a", "https://c:1/x"]
    with pytest.raises(ProtocolError) as caught:
        Downloader(["nonsense"])
    assert caught.value.code == "no_relays"


def test_pieces__each_with_its_place_and_bytes(downloader, server):
    kept, lock = [], threading.Lock()

    def keep(piece, place, data):
        with lock:
            kept.append((piece, place, bytes(data)))

    downloader.fetch_pieces(zip(PIECES, range(20), strict=True), keep, thing="pieces")
    assert sorted(kept, key=lambda each: each[1]) == list(zip(PIECES, range(20), BODIES, strict=True))
    assert server.connections <= 4
    downloader.fetch_pieces([], keep, thing="nothing")


def test_piece_twice_in_a_list__is_kept_at_both_places(downloader):
    places = []
    downloader.fetch_pieces(
        [(PIECES[0], "a"), (PIECES[0], "b")], lambda piece, place, data: places.append(place), thing="pieces"
    )
    assert sorted(places) == ["a", "b"]


def test_document__what_check_makes_of_it__and_its_source(downloader):
    content, source_ = downloader.fetch("/heads/1.json", limit=100, check=bytes.decode, thing="the head")
    assert content == "/heads/1.json"
    assert source_ is downloader.sources[0]


@pytest.mark.parametrize(
    ("failure", "code", "text"),
    [
        (ProtocolError("bad_head", "it is not a head"), "no_relay", "sent wrong bytes: it is not a head"),
        (LackingError("knows no route"), "not_at_relays", "no relay has the head: .* knows no route"),
    ],
)
def test_document_that_check_refuses(downloader, failure, code, text):
    def check(_):
        raise failure

    with pytest.raises(TransientError, match=text) as caught:
        downloader.fetch("/heads/1.json", limit=100, check=check, thing="the head")
    assert caught.value.code == code


def test_document_over_its_limit(downloader):
    with pytest.raises(TransientError, match="offers 13 bytes, but at most 12 are allowed"):
        downloader.fetch("/heads/1.json", limit=12, check=bytes, thing="the head")


@pytest.fixture
def serve():
    """Return a function that starts a server and returns its URL."""
    servers = []

    def start(answer):
        servers.append(RawServer(answer))
        return servers[-1].url

    yield start
    for server in servers:
        server.close()


def answer_with(body):
    return lambda _, send: send(respond(body)) or True


@pytest.fixture
def stall():
    """Return an answer that never comes."""
    released = threading.Event()
    yield lambda *_: released.wait(2 * HANG_S)
    released.set()


def fetch_several(*urls, count=3, check=bytes.decode, stop=None, silent=()):
    """Return the answers by source, and the duration in seconds. The clock moves only while `silent` sources are
    awaited.
    """
    begun = time.monotonic()
    with closing(Downloader(urls, seed=0)) as downloader:
        downloader._sources = StandingSources(urls, slow=silent, seed=0)
        answers = downloader.fetch_several("/x", count=count, limit=100, check=check, thing="the head", stop=stop)
        assert time.monotonic() - begun < HANG_S, "it has waited for a source that stalls"
        return {source_.url: content for content, source_ in answers}, downloader._sources.now


@pytest.mark.parametrize("number", [1, 2, 3, 5])
def test_fetch_several__asks_as_many_sources_as_there_are__up_to_a_number(serve, monkeypatch, number):
    monkeypatch.setattr(module, "_EXTRA_SECONDS", 1000.0)
    urls = [serve(answer_with(b"%d" % index)) for index in range(number)]
    answers, _ = fetch_several(*urls)
    assert len(answers) == min(3, number)
    assert all(answers[url] == str(index) for index, url in enumerate(urls) if url in answers)


def test_fetch_several__sources_that_fail_are_replaced__and_the_rest_is_enough(serve):
    good, absent, broken = answer_with(b"yes"), lambda _, send: send(respond(b"", 404)), lambda *_: None
    urls = [serve(each) for each in (absent, good, broken, answer_with(b"no"), good)]

    def check(body):
        if body == b"no":
            raise LackingError("knows no route")
        return body

    answers, _ = fetch_several(*urls, check=check)
    assert answers == {urls[1]: b"yes", urls[4]: b"yes"}


def test_fetch_several__silent_source__costs_half_a_second(serve, stall):
    silent = serve(stall)
    for urls in ([silent, serve(answer_with(b"a"))], [serve(answer_with(b"a")), silent, serve(answer_with(b"a"))]):
        answers, seconds = fetch_several(*urls, silent=[silent])
        assert len(answers) == len(urls) - 1
        assert 0.5 <= seconds < 0.9


def test_fetch_several__nobody_has_it__is_the_error_of_all(serve):
    urls = [serve(lambda _, send: send(respond(b"", 404))) for _ in range(2)]
    with pytest.raises(TransientError, match="no relay has the head") as caught:
        fetch_several(*urls)
    assert caught.value.code == "not_at_relays"
    assert all(url in str(caught.value) for url in urls)


def test_fetch_several__stopped__is_no_answer(serve, stall):
    stop = threading.Event()

    def check(body):
        stop.set()
        return body

    with pytest.raises(TransientError, match="stopped"):
        fetch_several(serve(stall), serve(answer_with(b"a")), check=check, stop=stop)


def test_blame__costs_all_trust(downloader):
    downloader.blame(downloader.sources[0], "its head names what does not exist")
    assert downloader.sources[0].success == 0.0
