"""The folder of a relay: damaged files are removed, and only what the newest policies need stays."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from covey.protocol.head import Head, ServedPolicy, Way
from covey.protocol.pieces import compute_blake3
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_cache import PieceCache, list_mirrored, select_mirrored
from covey.shardcast.piece_files import read_piece
from tests.fakes.served_policies import Publisher, flip

pytestmark = pytest.mark.unit


@pytest.fixture
def publisher(tmp_path):
    return Publisher(OriginStore(tmp_path / "origin"), tmp_path)


@pytest.fixture
def cache(tmp_path):
    return PieceCache(tmp_path / "relay")


def copy(publisher, cache):
    """Copy everything from the origin into the cache."""
    cache.add_head(1, publisher.store.find_head(1))
    for made in publisher.policies.values():
        record = made.record.compute_hash()
        cache.add_record(record, publisher.store.find_record(record))
    for ways in publisher.ways.values():
        for way in ways:
            cache.add_manifest(way.manifest, publisher.store.find_manifest(way.manifest))
            for digest in cache.list_pieces(way.manifest):
                cache.add_piece(digest, read_piece(publisher.store.find_piece(digest)))


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
    assert read_piece(later.find_piece(digest)) == b"abc"
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
    assert later.describe() == {"pieces": 1, "bytes_on_disk": 22, "max_bytes": None}
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
    """Add a data set to the cache, as if it had been fetched at this Unix time."""
    made = publisher.add_dataset(seed)
    cache.add_manifest(made.digest, made.to_bytes())
    os.utime(cache.root / "manifests" / made.digest, (seconds, seconds))
    for piece in made.files[0].pieces:
        cache.add_piece(piece.digest, read_piece(publisher.store.find_piece(piece.digest)))
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


def list_present(cache, pieces):
    return [cache.has_piece(piece.digest) for piece in pieces]


def add_numbered(cache, number, size=100):
    """Add a piece, as if it had been fetched at this Unix time. Returns its hash, or None if it does not fit."""
    data = number.to_bytes(2, "big") * (size // 2)
    try:
        location = cache.add_piece(compute_blake3(data), data)
    except OSError:
        return None
    os.utime(location.path, ns=(number * 10**9, number * 10**9))
    return compute_blake3(data)


def measure(cache):
    return sum(path.stat().st_size for path in (cache.root / "pieces").glob("*/*"))


def test_limit__many_threads__is_never_exceeded_and_what_is_removed_makes_room(tmp_path):
    cache = PieceCache(tmp_path, max_bytes=1050)
    with ThreadPoolExecutor(8) as threads:
        digests = list(threads.map(lambda number: add_numbered(cache, number), range(100)))
        assert measure(cache) == 1000
    kept = [digest for digest in digests if digest is not None]
    assert len(kept) == 10
    assert cache.describe() == {"pieces": 10, "bytes_on_disk": 1000, "max_bytes": 1050}
    assert add_numbered(cache, 200, size=50) is not None
    assert add_numbered(cache, 201, size=2) is None
    flip(get_path(cache, kept[0]))
    os.utime(get_path(cache, kept[0]), ns=(0, 0))
    assert cache.find_piece(kept[0]) is None
    assert add_numbered(cache, 202) is not None
    get_path(cache, kept[1]).unlink()
    assert cache.find_piece(kept[1]) is None
    assert add_numbered(cache, 203) is not None
    assert add_numbered(cache, 204) is None
    assert cache.describe()["bytes_on_disk"] == measure(cache) == 1050


def test_limit__same_piece_again__counts_once(tmp_path):
    cache = PieceCache(tmp_path, max_bytes=250)
    assert [add_numbered(cache, number) is not None for number in (1, 1, 1, 2, 3)] == [True] * 4 + [False]


def test_limit__failed_write__takes_no_room(tmp_path):
    cache = PieceCache(tmp_path, max_bytes=100)
    blocked = compute_blake3(bytes(100))
    get_path(cache, blocked).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        cache.add_piece(blocked, bytes(100))
    assert add_numbered(cache, 1) is not None


def test_limit__folder_that_is_larger__loses_the_oldest_pieces_at_the_start(cache):
    digests = [add_numbered(cache, number) for number in range(5)]
    smaller = PieceCache(cache.root, max_bytes=250)
    assert [smaller.has_piece(digest) for digest in digests] == [False] * 3 + [True] * 2
    assert measure(smaller) == 200


def test_prune__limit__newest_policy_has_room_before_older_ones_and_these_before_spare_pieces(publisher, cache):
    """Each anchor has pieces of 1,300 and 22 bytes. All anchors share the piece of 22 bytes."""
    made = [publisher.add_anchor(step) for step in (1, 2, 3)]
    copy(publisher, cache)
    spare = [add_numbered(cache, number) for number in range(20_000, 20_003)]
    limited = PieceCache(cache.root, max_bytes=2 * 1300 + 22 + 250)
    assert [list_present(limited, each.anchor.pieces) for each in made] == [[False, True], [True, True], [True, True]]
    assert [limited.has_piece(digest) for digest in spare] == [False, True, True]
    limited._remove_piece(made[-1].anchor.objects[0].pieces[0].digest)
    limited.prune()
    assert add_numbered(limited, 9, size=1300) is not None, "room is kept for what is missing"


def test_prune__spare_share__older_half_goes(cache):
    digests = [add_numbered(cache, number) for number in range(5)]
    cache.prune(spare_share=0.5)
    assert [cache.has_piece(digest) for digest in digests] == [False] * 3 + [True] * 2


def test_list_mirrored__newest_of_each_pool_first__smallest_way_first():
    def serve(step):
        ways = tuple(Way(manifest=f"0x{10 * step + size:064x}", size=size) for size in (2, 1))
        return ServedPolicy(step=step, record=f"0x{step:064x}", ways=ways)

    heads = [Head(pool=pool, policies=tuple(map(serve, steps))) for pool, steps in ((1, (9, 8, 7)), (2, (3, 2)))]
    listed = list_mirrored(heads, 3)
    assert [policy.step for policy in listed] == [9, 3, 8, 2, 7]
    assert all([way.size for way in policy.ways] == [1] for policy in listed), "the cheapest anchor suffices"


def test_select_needed__head_with_large_policies__leaves_the_others_their_part(publisher, cache):
    """A lying upstream invents a newer step with a large policy. Pieces have 5,000 bytes, and 1,300 and 22 bytes."""
    true = publisher.add_anchor(1)
    honest = publisher.build_head()
    copy(publisher, cache)
    false = publisher.add_anchor(9, sizes=(5000,))
    lying = publisher.build_head().model_copy(update={"policies": publisher.build_head().policies[:1]})
    copy(publisher, cache)
    limited = PieceCache(cache.root, max_bytes=6000)
    for heads in ([honest, lying], [lying, honest]):
        needed, room = limited.select_needed(heads, 5)
        assert needed == {piece.digest for piece in true.anchor.pieces}
        assert room == 6000 - 1322
    needed, _ = cache.select_needed([honest, lying], 5)
    assert needed == {piece.digest for made in (true, false) for piece in made.anchor.pieces}
