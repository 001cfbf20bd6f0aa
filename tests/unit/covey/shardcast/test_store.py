import hashlib

import pytest

from covey.shardcast.store import KEPT_POLICIES, ShardStore, add_policy, compute_range_hash

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
    assert store.get_manifest_path(1, 4).read_bytes() == manifest.to_bytes()
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
    store.prune(1)
    assert store.list_steps(1) == [7, 8, 9, 10, 11]
    assert store.list_steps(2) == [0]
    left = {path.name for path in (store.root / "shards").iterdir()}
    expected = {digest(b"weights of %d" % step) for step in range(7, 12)}
    assert left == expected | {digest(b"the same in all"), other.files[0].sha256}


def test_list_steps__numbers_not_names__and_nothing_else(store, tmp_path):
    for step in (2, 10, 1):
        add_policy(store, make_folder(tmp_path / str(step), {"x": b"1"}), pool=1, step=step)
    (store.root / "policies" / "1" / "junk.json").write_text("{")
    (store.root / "policies" / "1" / ".3.json.ab12").write_text("{")
    assert store.list_steps(1) == [1, 2, 10]
    assert store.list_steps(7) == []


@pytest.mark.parametrize(
    ("offset", "size", "part"), [(0, 5, b"01234"), (3, 4, b"3456"), (8, 9, b"89"), (20, 3, b""), (0, 0, b"")]
)
def test_range_hash__by_hand(tmp_path, offset, size, part):
    (tmp_path / "f").write_bytes(b"0123456789")
    assert compute_range_hash(tmp_path / "f", offset, size) == digest(part)
