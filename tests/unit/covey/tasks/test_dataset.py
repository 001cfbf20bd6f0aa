import json
import struct

import pytest

from covey.environments.base import EnvironmentSpec
from covey.environments.registry import compute_fingerprint, load
from covey.environments.task_draws import draw_below, is_held_out
from covey.errors import OperatorError
from covey.protocol import canonical
from covey.protocol.dataset_manifest import DATA_PIECE_BYTES, DatasetFile, DatasetManifest
from covey.protocol.pieces import build_pieces, compute_blake3
from covey.tasks.dataset import Folder, open_folder
from tests.fakes.tasks import make_data_set, make_row

pytestmark = pytest.mark.unit

TRAIN = [n for n in range(40) if not is_held_out(f"What is {n} + 1?")]
HELD_OUT = [n for n in range(40) if is_held_out(f"What is {n} + 1?")]


@pytest.fixture
def data_set(tmp_path):
    return make_data_set(tmp_path / "tasks", [make_row(n) for n in range(40)])


def seal(folder):
    """Write a manifest that matches the current files, as an author of wrong rows would."""
    files = []
    for path in sorted(folder.iterdir()):
        if path.name != "manifest.json":
            pieces = build_pieces(memoryview(path.read_bytes()), DATA_PIECE_BYTES)
            hashes = tuple(piece.digest for piece in pieces)
            files.append(DatasetFile(name=path.name, size=path.stat().st_size, hashes=hashes))
    (folder / "manifest.json").write_bytes(DatasetManifest(files=tuple(files)).to_bytes())
    return open_folder(folder)


def test_read__every_row_of_both_splits__in_the_order_of_the_source(data_set):
    assert [data_set.read("train", "math", i).problem_id for i in range(len(TRAIN))] == [f"p-{n}" for n in TRAIN]
    assert [data_set.read("held_out", "math", i).problem_id for i in range(len(HELD_OUT))] == [
        f"p-{n}" for n in HELD_OUT
    ]
    assert data_set.groups == {("held_out", "math"): len(HELD_OUT), ("train", "math"): len(TRAIN)}
    assert data_set.count("train", "code") == 0


@pytest.mark.parametrize("index", [-1, len(TRAIN), 1 << 60])
def test_read__missing_row__no_row(data_set, index):
    with pytest.raises(OperatorError, match="no_row"):
        data_set.read("train", "math", index)


@pytest.mark.parametrize("entry", [(1 << 40, 10), (0, 1 << 30), ((1 << 64) - 1, 1), (0, (1 << 32) - 1), (3, 9), (0, 0)])
def test_read__index_that_points_elsewhere__bad_dataset(tmp_path, data_set, entry):
    index = tmp_path / "tasks" / "train.math.index"
    index.write_bytes(struct.pack("<QI", *entry) + index.read_bytes()[12:])
    wrong = seal(tmp_path / "tasks")
    with pytest.raises(OperatorError, match=r"bad_dataset: .*row 0 of train\.math\.index"):
        wrong.read("train", "math", 0)
    assert wrong.read("train", "math", 1).problem_id == f"p-{TRAIN[1]}"


def test_read__row_of_another_split_or_type__bad_dataset(tmp_path, data_set):
    folder = tmp_path / "tasks"
    train, held_out = folder / "train.math.index", folder / "held_out.math.index"
    first = held_out.read_bytes()
    train.write_bytes(first)
    (folder / "train.code.index").write_bytes(first)
    wrong = seal(folder)
    with pytest.raises(OperatorError, match="belongs to split held_out and type math"):
        wrong.read("train", "math", 0)
    with pytest.raises(OperatorError, match="belongs to split held_out and type math"):
        wrong.read("train", "code", 0)


def test_open__folder_without_a_data_set__no_dataset(tmp_path):
    with pytest.raises(OperatorError, match="no_dataset"):
        open_folder(tmp_path)


@pytest.mark.parametrize("damage", ["shorter", "gone", "manifest", "no rows"])
def test_open__damaged__bad_dataset(tmp_path, data_set, damage):
    folder = tmp_path / "tasks"
    if damage == "shorter":
        (folder / "rows.jsonl").write_bytes((folder / "rows.jsonl").read_bytes()[:-1])
    elif damage == "gone":
        (folder / "train.math.index").unlink()
    elif damage == "manifest":
        (folder / "manifest.json").write_text("{}")
    else:
        (folder / "rows.jsonl").unlink()
        with pytest.raises(OperatorError, match=r"does not list the file rows\.jsonl"):
            seal(folder)
        return
    with pytest.raises(OperatorError, match="bad_dataset"):
        open_folder(folder)


def test_environment__draws_of_a_pool__select_rows_by_the_hash_of_the_draw(data_set):
    environment = load(EnvironmentSpec(kind="math", options={"dataset": data_set.digest}), lambda digest: data_set)
    for draw in (0, 5, 1 << 62):
        number = TRAIN[draw_below("row", draw, len(TRAIN))]
        prompt = environment.prompt(draw)
        assert prompt.text == f"What is {number} + 1?"
        assert prompt.verification == {"ground_truth": [str(number + 1)]}
    assert environment.identify(5)["task"] == f"{data_set.digest}/{draw_below('row', 5, len(TRAIN))}"
    assert [prompt.text for prompt in environment.held_out(2)] == [f"What is {n} + 1?" for n in HELD_OUT[:2]]
    assert len(environment.held_out(len(HELD_OUT) + 1)) == len(HELD_OUT)


def test_environment__fingerprint__reads_no_row(data_set, monkeypatch):
    monkeypatch.setattr(data_set, "read", lambda *_: pytest.fail("a row is read"))
    environment = load(EnvironmentSpec(kind="math", options={"dataset": data_set.digest}), lambda digest: data_set)
    assert compute_fingerprint(environment)


def test_environment__no_row_of_its_type__bad_environment(data_set):
    environment = load(
        EnvironmentSpec(kind="short_answer", options={"dataset": data_set.digest}), lambda digest: data_set
    )
    with pytest.raises(OperatorError, match="no training rows of type short_answer"):
        environment.prompt(1)


def test_rows_file__one_canonical_line_each(tmp_path, data_set):
    lines = (tmp_path / "tasks" / "rows.jsonl").read_bytes().splitlines()
    assert len(lines) == 40
    assert json.loads(lines[3])["prompt"] == "What is 3 + 1?"
    assert all(canonical.to_bytes(json.loads(line)) == line for line in lines)


def test_read__bytes_that_changed_in_the_folder__bad_dataset_until_an_import_repairs_them(tmp_path, data_set):
    rows = tmp_path / "tasks" / "rows.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"What", b"That"))
    damaged = open_folder(tmp_path / "tasks")
    for _ in range(2):
        with pytest.raises(OperatorError, match=r"bad_dataset: piece 0 of .*rows\.jsonl"):
            damaged.read("train", "math", 0)
    assert make_data_set(tmp_path / "tasks", [make_row(n) for n in range(40)]).digest == data_set.digest
    assert open_folder(tmp_path / "tasks").read("train", "math", 0).prompt.startswith("What")
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]


def test_read__equal_pieces_in_two_files__are_hashed_in_both(tmp_path):
    files = (DatasetFile(name=name, size=3, hashes=(build_pieces(memoryview(b"abc"))[0].digest,)) for name in "ab")
    first, second = files
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"xyz")
    folder = Folder(tmp_path)
    assert folder.read(first, 1, 2) == b"bc"
    with pytest.raises(OperatorError, match="bad_dataset: piece 0 of"):
        folder.read(second, 1, 2)


def test_manifest__written_by_an_import__has_the_hashes_of_the_pieces(tmp_path):
    made = make_data_set(tmp_path / "tasks", [make_row(n, prompt=f"{n} " + "x" * 700_000) for n in range(5)])
    assert [len(file.pieces) for file in made.manifest.files] == [1, 4, 1]
    for file in made.manifest.files:
        data = memoryview((tmp_path / "tasks" / file.name).read_bytes())
        assert file.pieces == build_pieces(data, 1 << 20)
    assert made.digest == compute_blake3((tmp_path / "tasks" / "manifest.json").read_bytes())
