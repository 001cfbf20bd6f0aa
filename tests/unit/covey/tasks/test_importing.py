import pytest

from covey.environments.task_draws import is_held_out
from covey.errors import OperatorError
from covey.protocol.pieces import compute_blake3
from covey.tasks.dataset import open_folder
from covey.tasks.dataset_row import BadRowError, Reading
from covey.tasks.importing import import_rows
from covey.tasks.sources import SourceRow
from tests.fakes.tasks import make_row

pytestmark = pytest.mark.unit


def name_rows(rows):
    return [SourceRow(place=f"rows.jsonl, row {n}", values=row) for n, row in enumerate(rows, 1)]


def run(folder, rows, **options):
    return import_rows(name_rows(rows), folder, Reading(), **options)


def test_import__rows_of_both_splits__are_counted_and_the_digest_is_the_manifests_hash(tmp_path):
    report = run(tmp_path / "out", [make_row(n) for n in range(40)])
    held_out = sum(is_held_out(f"What is {n} + 1?") for n in range(40))
    assert 0 < held_out < 40
    assert report.rows == {"held_out math": held_out, "train math": 40 - held_out}
    assert report.digest == compute_blake3((tmp_path / "out" / "manifest.json").read_bytes())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "held_out.math.index",
        "manifest.json",
        "rows.jsonl",
        "train.math.index",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_import__equal_rows__give_equal_digests_and_other_rows_another(tmp_path):
    rows = [make_row(n) for n in range(9)]
    first, second = (run(tmp_path / name, rows).digest for name in "ab")
    assert first == second
    assert run(tmp_path / "c", rows[::-1]).digest != first


def test_import__repeated_prompt__keeps_the_first_row(tmp_path):
    report = run(tmp_path / "out", [make_row(1), make_row(1, problem_id="later"), make_row(2)])
    assert report.duplicates == 1
    data_set = open_folder(tmp_path / "out")
    rows = [data_set.read(split, kind, i) for (split, kind), count in data_set.groups.items() for i in range(count)]
    assert sorted(row.problem_id for row in rows) == ["p-1", "p-2"]


def test_import__limit__ends_after_that_many_rows(tmp_path):
    assert sum(run(tmp_path / "out", [make_row(n) for n in range(9)], limit=4).rows.values()) == 4


def test_import__again_into_the_same_folder__only_the_same_rows_are_accepted(tmp_path):
    rows = [make_row(n) for n in range(9)]
    digest = run(tmp_path / "out", rows).digest
    before = (tmp_path / "out" / "rows.jsonl").read_bytes()
    assert run(tmp_path / "out", rows).digest == digest
    with pytest.raises(OperatorError, match="dataset_exists"):
        run(tmp_path / "out", rows[:-1])
    assert (tmp_path / "out" / "rows.jsonl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_import__over_something_else__is_refused_at_once(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with pytest.raises(OperatorError, match="dataset_exists"):
        run(tmp_path / "out", [make_row(1)])
    assert (tmp_path / "out" / "mine").read_text() == "x"


def test_import__no_rows__is_refused(tmp_path):
    with pytest.raises(OperatorError, match="empty_dataset"):
        run(tmp_path / "out", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), RuntimeError])
def test_import__interrupted__leaves_nothing(tmp_path, error):
    def read():
        yield from name_rows([make_row(1)])
        raise error

    expected = OperatorError if isinstance(error, OSError) else error
    with pytest.raises(expected):
        import_rows(read(), tmp_path / "out", Reading())
    assert list(tmp_path.iterdir()) == []


def test_import__draft_of_a_killed_process__is_replaced(tmp_path):
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "rows.jsonl").write_text("half")
    run(tmp_path / "out", [make_row(1)])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_import__bad_row__is_named_with_its_fix(tmp_path):
    with pytest.raises(OperatorError) as caught:
        run(tmp_path / "out", [make_row(1), make_row(2, verification_info="{}")])
    assert str(caught.value).startswith("bad_row: rows.jsonl, row 2 (problem p-2): ")
    assert "no field ground_truth" in str(caught.value)
    assert "--skip-bad" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_import__skip_bad__the_rest_is_imported_and_the_first_ten_are_named(tmp_path):
    bad = [make_row(n, task_type="poetry") for n in range(100, 112)]
    unread = BadRowError("bad_row", "the row is not JSON", fix="Correct it")
    report = run(tmp_path / "out", [unread, *bad, make_row(1)], skip_bad=True)
    assert sum(report.rows.values()) == 1
    assert report.skipped == 13
    assert len(report.reasons) == 10
    assert report.reasons[0] == "rows.jsonl, row 1: the row is not JSON"
    assert report.reasons[1].startswith("rows.jsonl, row 2 (problem p-100): task_type is 'poetry'")


def test_import__same_question_with_other_choices__is_another_row(tmp_path):
    infos = [{"choices": ["a", choice], "answer": answer} for choice, answer in (("b", "A"), ("c", "A"), ("b", "B"))]
    rows = [
        SourceRow(place=f"row {i}", values={"prompt": "Which is right?", "verification_info": info})
        for i, info in enumerate(infos)
    ]
    report = import_rows(rows, tmp_path / "tasks", Reading(task_type="multiple_choice"))
    assert (sum(report.rows.values()), report.duplicates) == (2, 1)


def test_import__after_one_that_was_killed_between_two_renames__replaces_the_folder(tmp_path):
    (tmp_path / "tasks.part.old").mkdir()
    (tmp_path / "tasks.part.old" / "rows.jsonl").write_text("left behind")
    rows = [SourceRow(place="row 1", values=make_row(1))]
    first, again = (import_rows(rows, tmp_path / "tasks", Reading()).digest for _ in range(2))
    assert first == again
    assert [path.name for path in tmp_path.iterdir()] == ["tasks"]
