import gzip
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from covey.errors import OperatorError
from covey.tasks import sources
from covey.tasks.dataset_row import BadRowError
from covey.tasks.sources import read_sources
from tests.fakes.tasks import make_row

pytestmark = pytest.mark.unit

ROWS = [make_row(n) for n in range(20)]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def read(*paths):
    return [row.values for row in read_sources(map(str, paths))]


def write(path, text=TEXT):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    elif path.suffix == ".zst":
        with pa.output_stream(str(path), compression="zstd") as stream:
            stream.write(text)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7)
    else:
        path.write_bytes(text)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"])
def test_read_sources__a_file__its_rows_in_order(tmp_path, name):
    assert read(write(tmp_path / name)) == ROWS


def test_read_sources__a_folder__its_files_by_name(tmp_path):
    write(tmp_path / "b.parquet")
    write(tmp_path / "a.jsonl", b'{"prompt": "first"}\n')
    write(tmp_path / "README.md", b"no rows")
    assert read(tmp_path) == [{"prompt": "first"}, *ROWS]


def test_read_sources__columns_that_are_not_read__are_not_decoded(tmp_path):
    row = {"prompt": "a", "verification_info": "{}", "solve_rate_x": 0.5}
    table = {name: [value] for name, value in row.items()} | {"responses": [["long"]]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [row]


def test_read_sources__no_verification_info__reads_all_columns_because_they_may_hold_the_tests(tmp_path):
    row = {"text": "Add.", "test_list": ["assert add(1, 2) == 3"]}
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [row]


def test_read_sources__integer_of_5000_digits__is_read(tmp_path):
    path = write(
        tmp_path / "a.jsonl",
        b'{"inputs": [[-' + b"7" * 5000 + b', 5]]}\n{"a": [' + b"7" * 5000 + b"}\n" + b"[" * 9999 + b"7" * 5000,
    )
    first, *others = read_sources([str(path)])
    assert first.values == {"inputs": [[Decimal("-" + "7" * 5000), 5]]}
    assert [type(row.values) for row in others] == [BadRowError, BadRowError]


def test_read_sources__blank_lines_and_no_final_newline__row_numbers_are_line_numbers(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"a": 1}\n\n{"a": 2}')
    assert [(row.place, row.values) for row in read_sources([str(path)])] == [
        ("a.jsonl, row 1", {"a": 1}),
        ("a.jsonl, row 3", {"a": 2}),
    ]


def test_read_sources__a_line_over_the_limit__is_named_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_ROW_BYTES", 50)
    long = json.dumps({"prompt": "x" * 500}).encode()
    path = write(tmp_path / "a.jsonl", long + b"\n" + b'{"a": 2}\n' + long)
    first, second, third = read_sources([str(path)])
    assert second.values == {"a": 2}
    for row in (first, third):
        assert isinstance(row.values, BadRowError)
        assert row.values.code == "row_too_long"
    assert third.place == "a.jsonl, row 3"


def test_read_sources__a_parquet_row_over_the_limit__is_named_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_ROW_BYTES", 50)
    pq.write_table(pa.table({"prompt": ["x" * 60, "y"]}), tmp_path / "a.parquet")
    first, second = read(tmp_path / "a.parquet")
    assert first.code == "row_too_long"
    assert second == {"prompt": "y"}


@pytest.mark.parametrize("line", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_read_sources__a_line_that_is_not_an_object__is_a_bad_row(tmp_path, line):
    (row,) = read(write(tmp_path / "a.jsonl", line))
    assert row.code == "bad_row"


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.jsonl.zst"])
def test_read_sources__truncated__is_refused_with_its_name(tmp_path, name):
    path = write(tmp_path / name)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(OperatorError, match=rf"bad_source: .*{name} cannot be read"):
        read(path)


def test_read_sources__parquet_of_huge_row_groups__is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "MAX_GROUP_BYTES", 10)
    with pytest.raises(OperatorError, match="row group 0 of"):
        read(write(tmp_path / "a.parquet"))


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "/no/where", "missing.jsonl", "folder/missing.jsonl"])
def test_read_sources__missing_source__no_source(name):
    with pytest.raises(OperatorError, match="no_source"):
        read(name)


def test_read_sources__folder_without_rows_or_unknown_ending__is_refused(tmp_path):
    with pytest.raises(OperatorError, match="no_source"):
        read(tmp_path)
    with pytest.raises(OperatorError, match="bad_source"):
        read(write(tmp_path / "a.csv"))


def test_read_sources__folder_saved_by_datasets__yields_its_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "saved"))
    assert read(tmp_path / "saved") == ROWS


def test_read_sources__without_the_package__explains_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "dataset_info.json").write_text("{}")

    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(sources.importlib, "import_module", refuse)
    with pytest.raises(OperatorError, match=r"covey\[datasets\]"):
        read(tmp_path)
