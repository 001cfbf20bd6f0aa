"""The folder of a trainer: which files it links, repairs, refuses to serve and removes."""

import errno
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from covey.errors import OperatorError
from covey.protocol.pieces import compute_blake3
from covey.shardcast import piece_files
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_files import read_piece
from covey.shardcast.reachability import PolicyRetention
from tests.fakes.served_policies import Publisher, flip

pytestmark = pytest.mark.unit


@pytest.fixture
def publisher(tmp_path):
    return Publisher(OriginStore(tmp_path / "origin"), tmp_path)


@pytest.fixture
def served(publisher):
    """Return the folder as another process sees it."""
    return OriginStore(publisher.store.root)


def get_object(publisher, manifest, name="weights"):
    return publisher.store.root / "objects" / manifest.address / name


def is_served(store, manifest):
    """Return whether each piece is served, in order, and check the bytes of the served ones."""
    results = []
    for piece in manifest.pieces:
        location = store.find_piece(piece.digest)
        results.append(location is not None)
        if location is not None:
            assert compute_blake3(read_piece(location)) == piece.digest
    return results


def test_add_manifest__weights_are_a_hard_link_to_the_export(publisher, served):
    made = publisher.add_anchor(1, sizes=(5 << 20, 1000))
    export = made.folder / "model.safetensors"
    assert get_object(publisher, made.anchor).stat().st_ino == export.stat().st_ino
    assert is_served(served, made.anchor) == [True, True, True, True]
    location = served.find_piece(made.anchor.objects[0].pieces[1].digest)
    assert location.offset == len(made.record.header) + (4 << 20)


def test_add_manifest__other_file_system__is_copied(publisher, served, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made = publisher.add_anchor(1)
    assert get_object(publisher, made.anchor).stat().st_nlink == 1
    assert is_served(served, made.anchor) == [True, True]


def test_add_manifest__file_shorter_than_its_object__is_refused(publisher, tmp_path):
    made, short = publisher.add_anchor(1), tmp_path / "short"
    short.write_bytes(b"x")
    get_object(publisher, made.anchor).unlink()
    with pytest.raises(ValueError, match="has 1 bytes"):
        publisher.store.add_manifest(made.anchor, {**made.files, "weights": short})


def test_damaged_object__is_not_served__and_the_next_offer_repairs_it(publisher, served):
    made = publisher.add_anchor(1, sizes=(5 << 20, 1000))
    assert all(is_served(served, made.anchor))
    copy = publisher.scratch / "copy"
    copy.write_bytes((made.folder / "model.safetensors").read_bytes())
    flip(get_object(publisher, made.anchor), -1100)
    assert is_served(served, made.anchor) == [True, False, True, True]
    assert served.is_listed(made.anchor.objects[0].pieces[1].digest)
    publisher.store.add_manifest(made.anchor, {**made.files, "weights": copy})
    assert all(is_served(served, made.anchor))


def test_damaged_object__offer_is_damaged_too__is_reported(publisher):
    made = publisher.add_anchor(1)
    flip(made.folder / "model.safetensors")  # The object is a hard link to this file.
    with pytest.raises(OperatorError, match="damaged_object"):
        publisher.store.add_manifest(made.anchor, made.files)


def test_damage_that_keeps_the_stamp__is_found_when_a_client_asks_to_verify(publisher, served):
    made = publisher.add_anchor(1)
    path, digest = get_object(publisher, made.anchor), made.anchor.objects[0].pieces[0].digest
    assert served.find_piece(digest) is not None
    state = path.stat()
    flip(path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert served.find_checked_piece(digest) is not None
    assert served.find_piece(digest, verify=True) is None
    assert served.find_checked_piece(digest) is None


def test_add_manifest__objects_that_were_hashed__are_served_without_hashing_them_until_they_change(
    publisher, served, monkeypatch
):
    made = publisher.add_anchor(1)
    publisher.store.add_manifest(made.anchor, made.files, known=made.files)
    hashed = []
    monkeypatch.setattr(piece_files, "read_piece", hashed.append)
    pieces = list(made.anchor.pieces)
    assert is_served(served, made.anchor) == [True] * len(pieces)
    assert hashed == []
    for piece in pieces:
        assert served.find_checked_piece(piece.digest) is not None
    assert served.find_piece(pieces[0].digest, verify=True) is None, "a complaint is looked into"
    assert len(hashed) > 0

    again = OriginStore(publisher.store.root)
    os.utime(get_object(publisher, made.anchor), ns=(0, 0))
    assert again.find_piece(pieces[0].digest) is None, "a file that has changed is hashed"
    offered = get_object(publisher, made.anchor, ".offered")
    for data in (b"", b"[]", b'{"config.json": 3}', b'{"config.json": [1, 2]}', b"\xff"):
        offered.write_bytes(data)
        assert OriginStore(publisher.store.root).find_piece(pieces[-1].digest) is None


def test_piece_in_two_objects__one_damaged__other_is_served(publisher, served):
    first, second = publisher.add_anchor(1), publisher.add_anchor(2)
    flip(get_object(publisher, first.anchor, "config.json"))
    assert is_served(served, first.anchor) == [True, True]
    assert is_served(served, second.anchor) == [True, True]


def test_verify_all__counts_damaged_pieces(publisher, served):
    made = publisher.add_anchor(1)
    publisher.add_delta(2, 1)
    assert served.verify_all() == 0
    flip(get_object(publisher, made.anchor))
    assert served.verify_all() == 1


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_in_any_document__is_never_served(publisher, data):
    made = publisher.policies.get(1) or publisher.add_anchor(1)
    served, record = OriginStore(publisher.store.root), made.record.compute_hash()
    path = publisher.store.root / data.draw(
        st.sampled_from([f"manifests/{made.anchor.address}", f"records/{record}.json"])
    )
    position = data.draw(st.integers(0, path.stat().st_size - 1))
    whole = path.read_bytes()
    flip(path, position)
    found = served.find_record(record) if path.suffix else served.find_manifest(made.anchor.address)
    assert found is None
    publisher.store.add_record(made.record)
    publisher.store.add_manifest(made.anchor, made.files)
    assert path.read_bytes() == whole


def test_prune__keeps_what_the_newest_needs_and_removes_the_rest(publisher, served):
    publisher.add_anchor(1)
    first = publisher.add_delta(2, 1)
    publisher.add_delta(3, 2, size=60)
    jump = publisher.add_delta(3, 1, size=70)
    publisher.store.prune(1, PolicyRetention(keep=1))
    head = served.read_head(1)
    assert [(policy.step, len(policy.ways)) for policy in head.policies] == [(3, 1), (1, 1)]
    root = publisher.store.root
    expected = {publisher.policies[1].anchor.address, jump.address}
    assert {path.name for path in (root / "manifests").iterdir()} == expected
    assert {path.name for path in (root / "objects").iterdir()} == expected
    assert len(list((root / "records").iterdir())) == 2
    assert served.find_piece(next(first.pieces).digest) is None
    assert served.find_piece(next(jump.pieces).digest) is not None


def test_prune__head_changes_before_files_go(publisher, monkeypatch):
    publisher.add_anchor(1)
    publisher.add_anchor(2)

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(publisher.store, "write_head", fail)
    with pytest.raises(OSError, match="No space"):
        publisher.store.prune(1, PolicyRetention(keep=1))
    assert is_served(publisher.store, publisher.policies[1].anchor) == [True, True]


def test_prune__leftovers_of_a_crash__go_after_an_hour(publisher):
    made, orphan = publisher.add_anchor(1), publisher.add_anchor(2)
    del publisher.policies[2]
    publisher.write_head()
    now = (publisher.store.root / "manifests" / orphan.anchor.address).stat().st_mtime
    publisher.store.prune(1, PolicyRetention(), now + 3000)
    assert is_served(publisher.store, orphan.anchor) == [True, True]
    publisher.store.prune(1, PolicyRetention(), now + 4000)
    assert publisher.store.find_manifest(orphan.anchor.address) is None
    assert not get_object(publisher, orphan.anchor).parent.exists()
    assert is_served(publisher.store, made.anchor) == [True, True]


def test_prune__data_sets__stay_whatever_their_age(publisher, served):
    made = publisher.add_dataset(1)
    publisher.add_anchor(1)
    publisher.store.prune(1, PolicyRetention(keep=0), now=1e12)
    assert is_served(served, made.files[0]) == [True]
    assert served.find_manifest(made.digest) == made.to_bytes()


def test_prune__damaged_manifest__objects_stay_because_their_pool_is_unknown(publisher, served):
    made = publisher.add_anchor(1)
    publisher.add_anchor(2)
    flip(publisher.store.root / "manifests" / made.anchor.address, 50)
    del publisher.policies[1]
    publisher.write_head()
    publisher.store.prune(1, PolicyRetention(keep=1), now=1e12)
    assert get_object(publisher, made.anchor).exists()


def test_prune__damaged_head__removes_nothing(publisher):
    made = publisher.add_anchor(1)
    path = publisher.store.root / "heads" / "1.json"
    path.write_bytes(b"{")
    publisher.store.prune(1, PolicyRetention(keep=0))
    assert is_served(publisher.store, made.anchor) == [True, True]


def test_write_head__other_pool__is_refused(publisher):
    publisher.add_anchor(1)
    with pytest.raises(ValueError, match="pool 1, not 2"):
        publisher.store.write_head(2, publisher.build_head())


def test_describe__names_the_newest_step(publisher, served):
    publisher.add_anchor(1)
    publisher.add_anchor(7)
    served.verify_all()
    described = served.describe()
    assert described["newest_steps"] == {"1": 7}
    assert described["pieces"] == 3
