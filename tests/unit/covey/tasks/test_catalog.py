import pytest

from covey.environments.base import EnvironmentSpec
from covey.errors import OperatorError
from covey.tasks.catalog import DataSetCatalog, list_digests, list_folders
from tests.fakes.tasks import make_data_set, make_row

pytestmark = pytest.mark.unit

A, B = "0x" + "aa" * 32, "0x" + "bb" * 32


def test_catalog__folders_and_folders_of_folders__by_digest(tmp_path):
    first = make_data_set(tmp_path / "one", [make_row(1)])
    second = make_data_set(tmp_path / "many" / "two", [make_row(2)])
    third = make_data_set(tmp_path / "many" / "three", [make_row(3)])
    (tmp_path / "many" / "notes").mkdir()
    catalog = DataSetCatalog([tmp_path / "one", tmp_path / "many"])
    assert sorted(catalog.digests) == sorted([first.digest, second.digest, third.digest])
    assert catalog(second.digest).manifest == second.manifest
    assert catalog(second.digest) is catalog(second.digest)


def test_catalog__digest_in_no_folder_and_no_relay__no_dataset(tmp_path):
    make_data_set(tmp_path / "one", [make_row(1)])
    with pytest.raises(OperatorError, match=f"no_dataset: .*{A}"):
        DataSetCatalog([tmp_path])(A)


def test_list_folders__missing_folder__no_dataset(tmp_path):
    with pytest.raises(OperatorError, match="does not exist"):
        list_folders([tmp_path / "gone"])


@pytest.mark.parametrize(
    ("kind", "options", "digests"),
    [
        ("math", {"dataset": A}, [A]),
        ("reasoning_gym", {"name": "x"}, []),
        ("math", {"dataset": "no hash"}, []),
        (
            "mixture",
            {
                "parts": [
                    {"kind": "math", "weight": 1, "options": {"dataset": B}},
                    {"kind": "code", "weight": 1, "options": {"dataset": A}},
                    {"kind": "short_answer", "weight": 1, "options": {"dataset": B}},
                ]
            },
            [B, A],
        ),
        ("mixture", {"parts": [7, {}, {"options": []}]}, []),
        ("mixture", {"parts": {}}, []),
    ],
)
def test_list_digests__any_options__lists_each_digest_once_in_order(kind, options, digests):
    assert list_digests(EnvironmentSpec(kind=kind, options=options)) == digests
