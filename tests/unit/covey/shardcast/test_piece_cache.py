"""A relay's folder: damage is removed, and only what the newest policies need stays."""

import os

import pytest

from covey.protocol.head import Head, ServedPolicy, Way
from covey.protocol.pieces import compute_blake3
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_cache import PieceCache, select_mirrored
from covey.shardcast.piece_files import map_piece
from tests.fakes.served_policies import Publisher, flip

pytestmark = pytest.mark.unit


@pytest.fixture
def publisher(tmp_path):
    return Publisher(OriginStore(tmp_path / "origin"), tmp_path)


@pytest.fixture
def cache(tmp_path):
    return PieceCache(tmp_path / "relay")


def copy(publisher, cache):
    """Put everything from the origin into the cache."""
    cache.add_head(1, publisher.store.find_head(1))
    for made in publisher.policies.values():
        record = made.record.compute_hash()
        cache.add_record(record, publisher.store.find_record(record))
    for ways in publisher.ways.values():
        for way in ways:
            cache.add_manifest(way.manifest, publisher.store.find_manifest(way.manifest))
            for digest in cache.list_pieces(way.manifest):
                cache.add_piece(digest, bytes(map_piece(publisher.store.find_piece(digest))))


def get_path(cache, digest):
    return cache.root / "pieces" / digest[2:4] / digest


def test_add_piece__is_found_at_once_and_by_the_next_process(cache):
    digest = compute_blake3(b"abc")
    assert cache.find_piece(digest) is None
    location = cache.add_piece(digest, b"abc")
    assert location.path == get_path(cache, digest)
    assert cache.find_checked_piece(digest) == location
    later = PieceCache(cache.root)
    assert later.has_piece(digest)
    assert later.find_checked_piece(digest) is None
    assert bytes(map_piece(later.find_piece(digest))) == b"abc"
    assert later.find_checked_piece(digest) == location


@pytest.mark.parametrize("is_new_process", [False, True])
def test_damaged_piece__is_removed(cache, is_new_process):
    digest = compute_blake3(b"abc")
    flip(cache.add_piece(digest, b"abc").path)
    os.utime(get_path(cache, digest), ns=(0, 0))
    reader = PieceCache(cache.root) if is_new_process else cache
    assert reader.find_checked_piece(digest) is None
    assert reader.find_piece(digest) is None
    assert not get_path(cache, digest).exists()
    assert not reader.has_piece(digest)


def test_verify_all__removes_what_is_damaged(publisher, cache):
    made = publisher.add_anchor(1)
    copy(publisher, cache)
    assert cache.verify_all() == 0
    flip(get_path(cache, made.anchor.objects[0].pieces[0].digest))
    flip(cache.root / "manifests" / made.anchor.address, 60)
    later = PieceCache(cache.root)
    assert later.verify_all() == 1
    assert later.describe() == {"pieces": 1, "bytes_on_disk": 22}
    assert later.find_manifest(made.anchor.address) is None


def test_start__drafts_of_a_killed_process__are_removed(cache):
    draft = cache.root / "pieces" / "ab" / ".0xab.1234"
    draft.write_bytes(b"half")
    assert PieceCache(cache.root).describe()["pieces"] == 0
    assert not draft.exists()


def test_prune__keeps_the_newest_and_what_they_need(publisher, cache):
    publisher.add_anchor(1)
    publisher.add_delta(2, 1)
    unneeded = publisher.add_anchor(3)
    publisher.add_anchor(4)
    publisher.add_delta(5, 4)
    copy(publisher, cache)
    cache.prune(keep=1, spare_bytes=0)
    assert {path.name for path in (cache.root / "manifests").iterdir()} == {
        way.manifest for step in (4, 5) for way in publisher.ways[step]
    }
    assert cache.find_piece(unneeded.anchor.objects[0].pieces[0].digest) is None
    assert cache.describe()["pieces"] == 3
    assert cache.find_record(publisher.get_record(4)) is not None
    assert cache.find_record(publisher.get_record(3)) is None


def add_dataset(publisher, cache, seed, *, seconds):
    """Put a data set into the cache, as if it had been fetched at a Unix time."""
    made = publisher.add_dataset(seed)
    cache.add_manifest(made.digest, made.to_bytes())
    os.utime(cache.root / "manifests" / made.digest, (seconds, seconds))
    for piece in made.files[0].pieces:
        cache.add_piece(piece.digest, bytes(map_piece(publisher.store.find_piece(piece.digest))))
    return made


def test_prune__data_sets__the_last_fetched_stay_with_their_pieces_and_policies_do_not_count(publisher, cache):
    made = [add_dataset(publisher, cache, seed, seconds=100 - seed) for seed in range(3)]
    anchor = publisher.add_anchor(1).anchor
    copy(publisher, cache)
    cache.prune(keep=1, keep_datasets=2, spare_bytes=0)
    assert {path.name for path in (cache.root / "manifests").iterdir()} == {
        made[0].digest,
        made[1].digest,
        anchor.address,
    }
    kept = [cache.find_piece(each.files[0].hashes[0]) is not None for each in made]
    assert kept == [True, True, False]
    assert all(cache.is_listed(each.files[0].hashes[0]) for each in made[:2])
    assert not cache.is_listed(made[2].files[0].hashes[0])


def test_prune__manifest_that_comes_meanwhile__stays(publisher, cache, monkeypatch):
    made, select = publisher.add_dataset(1), cache._select_datasets

    def select_then_add(keep):
        selected = select(keep)
        cache.add_manifest(made.digest, made.to_bytes())
        return selected

    monkeypatch.setattr(cache, "_select_datasets", select_then_add)
    cache.prune()
    assert cache.find_manifest(made.digest) == made.to_bytes()


def test_prune__spare_pieces__newest_stay_within_their_size(cache):
    digests = []
    for number in range(4):
        data = bytes([number]) * 100
        digests.append(compute_blake3(data))
        os.utime(cache.add_piece(digests[-1], data).path, ns=(number * 10**9, number * 10**9))
    cache.prune(spare_bytes=250)
    assert [cache.has_piece(digest) for digest in digests] == [False, False, True, True]


def test_head__damaged__counts_as_none(publisher, cache):
    publisher.add_anchor(1)
    copy(publisher, cache)
    assert cache.list_pools() == [1]
    flip(cache.root / "heads" / "1.json", 0)
    assert cache.find_head(1) is None


def test_select_mirrored__thousands_of_policies_of_one_step__two_at_most():
    """An upstream must not fill a relay's disk with policies that it claims for one step."""
    policies = [
        ServedPolicy(step=step, record=f"0x{number:064x}", ways=(Way(manifest=f"0x{number + 1000:064x}", size=1),))
        for step, count in ((7, 500), (6, 1), (5, 1))
        for number in range(step * 10_000, step * 10_000 + count)
    ]
    selected = select_mirrored(Head(pool=1, policies=tuple(policies)), 2)
    assert [policy.step for policy in selected.policies] == [7, 7, 6]
