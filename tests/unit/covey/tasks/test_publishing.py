import errno
import os

import pytest

from covey.errors import OperatorError
from covey.shardcast import piece_files
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.reachability import PolicyRetention
from covey.tasks.catalog import DataSetCatalog
from covey.tasks.publishing import add_data_set, require_data_sets, require_named
from tests.fakes.served_policies import Publisher, flip
from tests.fakes.tasks import make_data_set, make_row

pytestmark = pytest.mark.unit

OTHER = "0x" + "ab" * 32


@pytest.fixture
def store(tmp_path):
    return OriginStore(tmp_path / "origin")


def read_piece(store, piece):
    location = OriginStore(store.root).find_piece(piece.digest)
    return None if location is None else piece_files.read_piece(location)


def test_add_data_set__twice__links_its_files_and_serves_every_piece(tmp_path, store):
    made = make_data_set(tmp_path / "tasks", [make_row(n, prompt=f"{n} " + "x" * 700_000) for n in range(5)])
    assert add_data_set(store, tmp_path / "tasks") == add_data_set(store, tmp_path / "tasks") == made.digest
    assert store.find_manifest(made.digest) == (tmp_path / "tasks" / "manifest.json").read_bytes()
    for file in made.manifest.files:
        source = tmp_path / "tasks" / file.name
        assert (store.root / "objects" / made.digest / file.name).samefile(source)
        assert b"".join(read_piece(store, piece) for piece in file.pieces) == source.read_bytes()


def test_add_data_set__other_file_system__copies_and_repairs_the_copy(tmp_path, store, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    made = make_data_set(tmp_path / "tasks", [make_row(n) for n in range(40)])
    add_data_set(store, tmp_path / "tasks")
    (piece,) = made.manifest.find_file("rows.jsonl").pieces
    flip(store.root / "objects" / made.digest / "rows.jsonl")
    assert read_piece(store, piece) is None
    add_data_set(store, tmp_path / "tasks")
    assert read_piece(store, piece) == (tmp_path / "tasks" / "rows.jsonl").read_bytes()


def test_add_data_set__damaged_folder__is_not_served_until_an_import_repairs_it(tmp_path, store):
    rows = [make_row(n) for n in range(9)]
    made = make_data_set(tmp_path / "tasks", rows)
    path = tmp_path / "tasks" / "rows.jsonl"
    path.write_bytes(path.read_bytes().replace(b"What", b"That"))
    with pytest.raises(OperatorError, match=r"bad_dataset: piece 0 of .*rows\.jsonl"):
        add_data_set(store, tmp_path / "tasks")
    assert store.find_manifest(made.digest) is None
    make_data_set(tmp_path / "tasks", rows)
    add_data_set(store, tmp_path / "tasks")
    (piece,) = made.manifest.find_file("rows.jsonl").pieces
    flip(path)  # The same file, since it is linked.
    assert read_piece(store, piece) is None
    make_data_set(tmp_path / "tasks", rows)
    add_data_set(store, tmp_path / "tasks")
    assert read_piece(store, piece) == path.read_bytes()


def test_add_data_set__pruning_of_policies__spares_it_even_if_its_manifest_is_damaged(tmp_path, store):
    made = make_data_set(tmp_path / "tasks", [make_row(1)])
    add_data_set(store, tmp_path / "tasks")
    Publisher(store, tmp_path).add_anchor(1)
    for _ in range(2):
        store.prune(1, PolicyRetention(keep=0), now=1e12)
        assert (store.root / "objects" / made.digest / "rows.jsonl").exists()
        assert (store.root / "manifests" / made.digest).exists()
        flip(store.root / "manifests" / made.digest)


def test_require_data_sets__missing_data_set_of_a_pool__wrong_dataset(tmp_path):
    data_set = make_data_set(tmp_path / "tasks", [make_row(1)])
    catalog = DataSetCatalog([tmp_path / "tasks"])
    require_data_sets([data_set.digest], catalog)
    with pytest.raises(OperatorError) as caught:
        require_data_sets([data_set.digest, OTHER], catalog)
    assert caught.value.code == "wrong_dataset"
    assert OTHER in caught.value.message
    assert data_set.digest in caught.value.message


def test_require_named__folder_of_the_pools_file__is_opened(tmp_path):
    data_set = make_data_set(tmp_path / "sets" / "a", [make_row(1)])
    make_data_set(tmp_path / "sets" / "b", [make_row(2)])
    assert require_named([data_set.digest], [tmp_path / "sets"])(data_set.digest).digest == data_set.digest
    assert require_named([], []).digests == []


def test_require_named__another_data_set_or_none_in_the_file__wrong_dataset_that_names_both(tmp_path):
    data_set = make_data_set(tmp_path / "a", [make_row(1)])
    with pytest.raises(OperatorError) as caught:
        require_named([OTHER], [tmp_path / "a"])
    assert caught.value.code == "wrong_dataset"
    assert OTHER in caught.value.message
    assert data_set.digest in caught.value.message
    with pytest.raises(OperatorError, match="sets no data set") as caught:
        require_named([], [tmp_path / "a"])
    assert f'dataset = "{data_set.digest}"' in caught.value.fix
