"""The door to downloads: which URLs are sources, documents and pieces, and what a document's check may say."""

import threading

import pytest

from covey.errors import ProtocolError, TransientError
from covey.protocol.pieces import Piece, compute_blake3
from covey.shardcast import source
from covey.shardcast.downloader import Downloader
from covey.shardcast.source_connection import LackingError
from tests.fakes.raw_server import RawServer, respond

pytestmark = pytest.mark.unit
BODIES = [bytes([index]) * (100 + index) for index in range(20)]
PIECES = [Piece(len(body), compute_blake3(body)) for body in BODIES]
BY_PATH = {f"/pieces/{piece.digest}": body for piece, body in zip(PIECES, BODIES, strict=True)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(source, "_LONGEST_LIE_REST_S", 0.01)


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
        (ProtocolError("bad_head", "it is no head"), "no_relay", "sent something else: it is no head"),
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
    with pytest.raises(TransientError, match="offers 13 bytes, and at most 12 are allowed"):
        downloader.fetch("/heads/1.json", limit=12, check=bytes, thing="the head")


def test_blame__costs_all_trust(downloader):
    downloader.blame(downloader.sources[0], "its head names what does not exist")
    assert downloader.sources[0].success == 0.0
