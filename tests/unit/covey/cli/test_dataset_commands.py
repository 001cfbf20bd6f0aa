"""`covey tasks import|check|show|select|example`: what they print and refuse."""

import json
from pathlib import Path

import pytest

from covey.console.account import read_pool_file
from covey.errors import OperatorError
from covey.tasks.dataset import open_folder
from tests.fakes.tasks import make_row
from tests.unit.conftest import TOKEN, Command

pytestmark = pytest.mark.unit


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rows = [make_row(n, solve_rate_q=n / 100) for n in range(40)]
    rows.append(make_row(99, task_type="multiple_choice", prompt="Which?", verification_info=CHOICE))
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


CHOICE = json.dumps({"choices": ["x", "y"], "answer": "B"})


@pytest.fixture
def folder(source: Path, command: Command) -> Path:
    assert command("tasks", "import", str(source), "--out", str(source.parent / "tasks")).code == 0
    return source.parent / "tasks"


def test_import__prints_digest_and_counts_and_json_the_same(source: Path, command: Command, tmp_path: Path) -> None:
    code, out, err = command("tasks", "import", str(source), "--out", str(tmp_path / "tasks"))
    digest = open_folder(tmp_path / "tasks").digest
    assert (code, err) == (0, "")
    assert f"digest {digest}" in out
    assert "skipped: 0" in out
    code, out, _ = command("tasks", "import", str(source), "--out", str(tmp_path / "tasks"), "--json")
    report = json.loads(out)
    assert report["digest"] == digest
    assert sum(report["rows"].values()) == 41


def test_import__unknown_type__names_row_and_fix_and_skip_bad_goes_on(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(make_row(1)) + "\n" + json.dumps(make_row(2, task_type="poetry")) + "\n")
    arguments = ("tasks", "import", str(path), "--out", str(tmp_path / "tasks"))
    code, _, err = command(*arguments)
    assert code == 1
    assert "unknown_task_type: a.jsonl, row 2 (problem p-2)" in err
    assert "--rename" in err
    code, out, _ = command(*arguments, "--skip-bad")
    assert code == 0
    assert "1 that cannot be read or graded" in out
    assert command(*arguments, "--rename", "poetry=short_answer", "--rename", "x").code == 1
    assert command("tasks", "import", str(path), "--out", str(tmp_path / "b"), "--rename", "poetry=math").code == 0


def test_check__counts_and_json(folder: Path, command: Command) -> None:
    code, out, _ = command("tasks", "check", str(folder))
    assert code == 0
    assert "held-out questions that nearly equal a training question: 0" in out
    report = json.loads(command("tasks", "check", str(folder), "--json").out)
    assert report["without_solve_rates"] == 1
    assert report["solve_rates"] == {"q": 40}


def test_show__row_by_number_and_by_id__question_answer_and_what_is_asked(folder: Path, command: Command) -> None:
    shown = json.loads(command("tasks", "show", str(folder), "--id", "p-99", "--json").out)
    assert shown["asked"] == "Which?\nA. x\nB. y"
    assert shown["verification_info"] == {"choices": ["x", "y"], "right": 1}
    code, out, _ = command("tasks", "show", str(folder), "0", "--type", "math", "--split", "held_out")
    assert code == 0
    assert "held_out row of type math" in out
    assert '{"ground_truth": [' in out
    assert command("tasks", "show", str(folder), "--id", "no").code == 1
    assert "no_row" in command("tasks", "show", str(folder), "5000", "--type", "math").err


def test_show__environment_of_a_pool__asks_as_the_pool_does(folder: Path, pool: Path, command: Command) -> None:
    write_environment(pool, folder, 'instruction = "Answer with a letter."')
    arguments = ("tasks", "show", str(folder), "--pool-file", str(pool), "--json")
    assert json.loads(command(*arguments, "--id", "p-7").out)["asked"] == "What is 7 + 1?\nAnswer with a letter."
    assert "wrong_dataset" in command(*arguments, "--id", "p-99").err


def test_select__by_solve_rate__a_data_set_of_the_rest(folder: Path, command: Command, tmp_path: Path) -> None:
    arguments = ("tasks", "select", str(folder), "--solve-rate", "q", "--out", str(tmp_path / "some"))
    found = json.loads(command(*arguments, "--low", "0.1", "--high", "0.2", "--json").out)
    assert (found["kept"], found["without_rate"]) == (11, 1)
    assert found["digest"] == open_folder(tmp_path / "some").digest
    assert "bad_bounds" in command(*arguments, "--low", "0.6").err


def test_example__file_that_can_be_imported(command: Command, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    assert command("tasks", "example", "--rows", "60", "--out", str(out)).code == 0
    assert len(out.read_text().splitlines()) == 60
    assert "file_exists" in command("tasks", "example", "--out", str(out)).err
    report = command("tasks", "import", str(out), "--out", str(tmp_path / "tasks"), "--skip-bad", "--json").out
    assert json.loads(report)["rows"]["train math"] > 10


def write_environment(pool: Path, folder: Path, more: str = "") -> None:
    """Make the pool's file draw rows of mathematics from a data set."""
    before, _, rest = pool.read_text().partition("[params.environment]")
    after = rest[rest.index("\n[params") :]
    options = f'dataset = "{open_folder(folder).digest}"\n{more}'
    pool.write_text(f'{before}[params.environment]\nkind = "math"\n[params.environment.options]\n{options}\n{after}')


def test_read_pool_file__data_set__is_needed_for_the_fingerprint_and_must_be_the_right_one(
    folder: Path, pool: Path, command: Command, tmp_path: Path
) -> None:
    write_environment(pool, folder)
    _, _, params = read_pool_file(pool, TOKEN, datasets=[folder])
    assert params.environment.fingerprint is not None
    with pytest.raises(OperatorError, match="no_dataset"):
        read_pool_file(pool, TOKEN)
    command("tasks", "select", str(folder), "--solve-rate", "q", "--low", "0", "--out", str(tmp_path / "other"))
    with pytest.raises(OperatorError, match="wrong_dataset"):
        read_pool_file(pool, TOKEN, datasets=[tmp_path / "other"])
