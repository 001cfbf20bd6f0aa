import pytest

from covey.errors import OperatorError
from covey.shardcast.store import ShardStore
from covey.tasks.catalog import DataSetCatalog
from covey.tasks.publishing import add_data_set, require_data_sets, require_named
from tests.fakes.tasks import make_data_set, make_row

pytestmark = pytest.mark.unit

OTHER = "0x" + "ab" * 32


def test_add_data_set__twice__the_store_has_each_shard_once(tmp_path):
    data_set = make_data_set(tmp_path / "tasks", [make_row(n) for n in range(40)])
    store = ShardStore(tmp_path / "origin")
    assert add_data_set(store, tmp_path / "tasks") == add_data_set(store, tmp_path / "tasks") == data_set.digest
    assert store.find_manifest(data_set.manifest.compute_name()) == data_set.manifest.to_bytes()
    shards = {shard.sha256 for shard in data_set.manifest.shards}
    assert {path.name for path in (tmp_path / "origin" / "shards").iterdir()} == shards
    assert len(shards) == 3
    rows = b"".join(store.get_shard_path(shard.sha256).read_bytes() for shard in data_set.manifest.files[1].shards)
    assert rows == (tmp_path / "tasks" / "rows.jsonl").read_bytes()


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
