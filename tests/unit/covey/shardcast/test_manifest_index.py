"""Index of manifests that another process adds and removes."""

import pytest

from covey.errors import ProtocolError
from covey.protocol.ids import Hash
from covey.shardcast.manifest_index import ManifestIndex, is_transport, read_contents
from covey.shardcast.origin_store import OriginStore
from tests.fakes.served_policies import Publisher, flip

pytestmark = pytest.mark.unit


@pytest.fixture
def publisher(tmp_path):
    return Publisher(OriginStore(tmp_path / "origin"), tmp_path)


@pytest.fixture
def index(publisher):
    root = publisher.store.root
    return ManifestIndex(root / "manifests", root / "objects")


def test_read_contents__unknown_kind__is_refused():
    with pytest.raises(ProtocolError, match="not a known kind"):
        read_contents(b"ZIP!", Hash("0x" + "11" * 32))


def test_read_contents__data_set__has_the_pieces_of_each_file(publisher):
    made = publisher.add_dataset(1, size=(2 << 20) + 7)
    (contents,) = read_contents(made.to_bytes(), made.digest)
    assert (contents.name, contents.size) == ("rows.jsonl", (2 << 20) + 7)
    assert [piece.size for piece in contents.pieces] == [1 << 20, 1 << 20, 7]
    with pytest.raises(ProtocolError, match="bad_manifest"):
        read_contents(made.to_bytes(), Hash("0x" + "11" * 32))


def test_is_transport__policy_or_data_set__by_the_first_bytes(publisher):
    folder = publisher.store.root / "manifests"
    assert is_transport(folder / publisher.add_anchor(1).anchor.address)
    assert not is_transport(folder / publisher.add_dataset(1).digest)


def test_refresh__data_set__its_pieces_are_found(publisher, index):
    made = publisher.add_dataset(1, size=(1 << 20) + 7)
    publisher.add_anchor(1)
    index.refresh()
    places = [index.find(piece.digest)[0] for piece in made.files[0].pieces]
    path = publisher.store.root / "objects" / made.digest / "rows.jsonl"
    assert places == [(path, (1 << 20) + 7, 1 << 20), (path, 7, 7)]
    assert len(index) == 4


def test_refresh__manifests_of_another_process__are_added_and_dropped(publisher, index):
    made = publisher.add_anchor(1)
    weights, config = made.anchor.objects
    assert index.find(weights.pieces[0].digest) == ()
    index.refresh()
    (place,) = index.find(weights.pieces[0].digest)
    assert (place.path.name, place.to_end, place.size) == ("weights", 1300, 1300)
    publisher.add_anchor(2)
    index.refresh()
    assert len(index) == 3
    assert len(index.find(config.pieces[0].digest)) == 2
    (publisher.store.root / "manifests" / made.anchor.address).unlink()
    assert index.refresh() == (publisher.store.root / "objects" / made.anchor.address,)
    assert index.find(weights.pieces[0].digest) == ()
    assert [place.path.parent.name for place in index.find(config.pieces[0].digest)] == [
        publisher.policies[2].anchor.address
    ]


def test_refresh__damaged_manifest__is_ignored_until_it_is_repaired(publisher, index):
    made = publisher.add_anchor(1)
    path = publisher.store.root / "manifests" / made.anchor.address
    flip(path, 50)
    index.refresh()
    assert len(index) == 0
    publisher.store.add_manifest(made.anchor, made.files)
    index.refresh()
    assert len(index) == 2


def test_iterate__yields_every_place(publisher, index):
    publisher.add_anchor(1, sizes=(5 << 20, 10))
    index.refresh()
    places = [(place.path.name, place.to_end) for _, place in index.iterate()]
    assert places == [("config.json", 22), ("weights", (5 << 20) + 10), ("weights", (1 << 20) + 10), ("weights", 10)]
