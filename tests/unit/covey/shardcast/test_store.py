import hashlib
import os

import pytest

from covey.errors import TransientError
from covey.shardcast.store import KEPT_POLICIES, Retention, ShardStore, add_policy, compute_range_hash

pytestmark = pytest.mark.unit


def make_folder(root, files):
    root.mkdir()
    for name, data in files.items():
        (root / name).write_bytes(data)
    return root


def digest(data):
    return "0x" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def store(tmp_path):
    return ShardStore(tmp_path / "store")


def test_add_policy__by_hand__files_in_order_cut_at_the_shard_size(store, tmp_path):
    folder = make_folder(tmp_path / "p", {"b.bin": b"12345678", "a.json": b"{}", "empty": b""})
    (folder / "folder").mkdir()
    manifest = add_policy(store, folder, pool=1, step=4, shard_bytes=3)
    assert [(f.name, f.size, [s.size for s in f.shards]) for f in manifest.files] == [
        ("a.json", 2, [2]),
        ("b.bin", 8, [3, 3, 2]),
        ("empty", 0, []),
    ]
    assert [s.sha256 for s in manifest.files[1].shards] == [digest(b"123"), digest(b"456"), digest(b"78")]
    assert manifest.files[1].sha256 == digest(b"12345678")
    assert store.get_shard_path(digest(b"456")).read_bytes() == b"456"
    assert store.get_manifest_path(manifest.compute_name()).read_bytes() == manifest.to_bytes()
    assert store.list_steps(1) == [4]


def test_add_policy__same_files_elsewhere__same_manifest(store, tmp_path):
    first = add_policy(store, make_folder(tmp_path / "p", {"x": b"1" * 10, "y": b"2"}), pool=1, step=0)
    second = add_policy(
        ShardStore(tmp_path / "other"), make_folder(tmp_path / "q", {"y": b"2", "x": b"1" * 10}), pool=1, step=0
    )
    assert first.compute_hash() == second.compute_hash()


def test_prune__keeps_five_and_only_their_shards(store, tmp_path):
    assert KEPT_POLICIES == 5
    for step in range(12):
        files = {"weights": b"weights of %d" % step, "config.json": b"the same in all"}
        add_policy(store, make_folder(tmp_path / str(step), files), pool=1, step=step)
    other = add_policy(store, make_folder(tmp_path / "o", {"weights": b"of pool 2"}), pool=2, step=0)
    store.prune(1, Retention())
    assert store.list_steps(1) == [7, 8, 9, 10, 11]
    assert store.list_steps(2) == [0]
    left = {path.name for path in (store.root / "shards").iterdir()}
    expected = {digest(b"weights of %d" % step) for step in range(7, 12)}
    assert left == expected | {digest(b"the same in all"), other.files[0].sha256}


def add_at(store, tmp_path, times):
    """Policies 0, 1, ... of pool 1, stored at these Unix seconds."""
    for step, stored in enumerate(times):
        manifest = add_policy(store, make_folder(tmp_path / f"p{step}", {"w": b"%d" % step}), pool=1, step=step)
        os.utime(store.get_manifest_path(manifest.compute_name()), (stored, stored))


@pytest.mark.parametrize(
    ("now", "steps"),
    [
        # Policy 0 is used until policy 2 is stored, at 1020, and stays for 100 s from then on.
        (1119, [0, 1, 2, 3, 4, 5, 6]), (1120, [1, 2, 3, 4, 5, 6]), (1130, [2, 3, 4, 5, 6]),
        (1500, [2, 3, 4, 5, 6]),  # policy 4 came late: 2 was in use until then
        (2100, [3, 4, 5, 6]), (9999, [4, 5, 6]),
    ],
)  # fmt: skip
def test_prune__by_time__from_when_a_policy_is_used_no_more__and_never_the_newest(store, tmp_path, now, steps):
    add_at(store, tmp_path, [1000, 1010, 1020, 1030, 2000, 2010, 2020])
    store.prune(1, Retention(keep=3, seconds=100, lifetime=2), now=now)
    assert store.list_steps(1) == steps
    assert {path.name for path in (store.root / "shards").iterdir()} == {digest(b"%d" % step) for step in steps}


def test_prune__too_few_newer_ones_to_know_that_it_is_unused__stays(store, tmp_path):
    add_at(store, tmp_path, [0, 0, 0])
    store.prune(1, Retention(keep=1, seconds=1, lifetime=3))
    assert store.list_steps(1) == [0, 1, 2]


@pytest.mark.parametrize(("keep", "steps"), [(0, []), (1, [2]), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_prune__without_seconds__by_number_alone_whatever_the_clock_says(store, tmp_path, keep, steps):
    add_at(store, tmp_path, [1e10, 1e10, 1e10])
    store.prune(1, Retention(keep=keep))
    assert store.list_steps(1) == steps


def test_prune__again__reads_only_manifests_that_changed(store, tmp_path, monkeypatch):
    add_at(store, tmp_path, [0, 10, 20])
    store.prune(1, Retention())
    read = []
    monkeypatch.setattr(
        "covey.shardcast.store._read_shards", lambda path: read.append(path.parent.name) or frozenset({digest(b"new")})
    )
    (path,) = (store.root / "policies" / "1" / "1").iterdir()
    os.utime(path, (30, 30))
    store.prune(1, Retention())
    assert read == ["1"]
    assert sorted(path.name for path in (store.root / "shards").iterdir()) == sorted([digest(b"0"), digest(b"2")])


def test_list_steps__numbers_not_names__and_nothing_else(store, tmp_path):
    for step in (2, 10, 1):
        add_policy(store, make_folder(tmp_path / str(step), {"x": b"1"}), pool=1, step=step)
    (store.root / "policies" / "1" / "3").mkdir()
    (store.root / "policies" / "1" / "3" / ".0x3.json.ab12").write_text("{")
    (store.root / "policies" / "1" / "junk").mkdir()
    (store.root / "policies" / "1" / "junk" / "junk.json").write_text("{")
    assert store.list_steps(1) == [1, 2, 10]
    assert store.list_steps(7) == []


@pytest.mark.parametrize(
    ("offset", "size", "part"), [(0, 5, b"01234"), (3, 4, b"3456"), (8, 9, b"89"), (20, 3, b""), (0, 0, b"")]
)
def test_range_hash__by_hand(tmp_path, offset, size, part):
    (tmp_path / "f").write_bytes(b"0123456789")
    assert compute_range_hash(tmp_path / "f", offset, size) == digest(part)


def test_find_shard__another_process_prunes__remembers_a_bounded_number(store, tmp_path, monkeypatch):
    monkeypatch.setattr("covey.shardcast.store._REMEMBERED_SHARDS", 3)
    folder = make_folder(tmp_path / "p", {"x": bytes(range(8))})
    for shard in add_policy(store, folder, pool=1, step=0, shard_bytes=1).shards:
        assert store.find_shard(shard.sha256) == store.get_shard_path(shard.sha256)
        assert len(store._whole) <= 3
    assert store.find_shard(digest(b"absent")) is None


def test_add_policy__shard_is_damaged__is_written_again(store, tmp_path):
    folder = make_folder(tmp_path / "p", {"x": b"weights"})
    add_policy(store, folder, pool=1, step=0)
    path = store.get_shard_path(digest(b"weights"))
    path.write_bytes(b"damaged")
    with pytest.raises(TransientError, match=f"damaged_copy: {path} does not have the hash"):
        store.find_shard(path.name)
    add_policy(store, folder, pool=1, step=0)
    assert path.read_bytes() == b"weights"
