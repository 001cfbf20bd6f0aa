from pathlib import Path

import pytest

from covey.environments import registry
from covey.environments.base import EnvironmentSpec
from covey.environments.mixture import MAX_WEIGHT
from covey.environments.task_draws import is_held_out
from covey.errors import OperatorError
from covey.local import new_environment
from covey.local.new_environment import choose_environment, import_data_set
from tests.fakes.tasks import make_data_set, make_row

pytestmark = pytest.mark.unit
TRAIN = [n for n in range(60) if not is_held_out(f"What is {n} + 1?")]
HELD_OUT = [n for n in range(60) if is_held_out(f"What is {n} + 1?")]


def make_short(number: int) -> dict[str, object]:
    return make_row(number, task_type="short_answer", verification_info={"answers": [str(number + 1)]})


def write(folder: Path, rows: list[dict[str, object]]) -> Path:
    make_data_set(folder / "tasks", rows)
    return folder / "tasks"


@pytest.mark.parametrize("named", [None, "reasoning_gym"])
def test_choose_environment__nothing_named__is_the_shipped_one(named: str | None):
    assert choose_environment(named, None) is None


def test_choose_environment__generator__is_taken_by_name():
    spec = choose_environment("reasoning_gym:chain_sum", None)
    assert spec == EnvironmentSpec(kind="reasoning_gym", options={"name": "chain_sum"})
    assert registry.load(spec).prompt(0).text


@pytest.mark.parametrize("named", ["math", "code", "short_answer", "multiple_choice", "mixture"])
def test_choose_environment__rows_are_needed__names_the_next_step(named: str):
    with pytest.raises(OperatorError) as caught:
        choose_environment(named, None)
    assert caught.value.code == "no_dataset"
    assert caught.value.fix.startswith("Add --dataset ROWS.jsonl; covey tasks example --out rows.jsonl")


def test_choose_environment__options_are_needed__names_the_file_that_has_them():
    with pytest.raises(OperatorError, match=r"bad_environment: .*taskset: missing; data_hash: missing") as caught:
        choose_environment("verifiers", None)
    assert "write kind and options into [params.environment]" in caught.value.fix


@pytest.mark.parametrize("named", ["maths", "reasoning_gym:no_such_generator", "chain_sum"])
def test_choose_environment__unknown__is_refused(named: str):
    with pytest.raises(OperatorError, match="bad_environment: "):
        registry.load(choose_environment(named, None) or registry.DEMO).prompt(0)


@pytest.mark.parametrize("named", [None, "math"])
def test_choose_environment__rows_of_one_type__has_their_digest(tmp_path: Path, named: str | None):
    folder = write(tmp_path, [make_row(number) for number in TRAIN])
    digest = make_data_set(tmp_path / "again", [make_row(number) for number in TRAIN]).digest
    assert choose_environment(named, folder) == EnvironmentSpec(kind="math", options={"dataset": digest})


def test_choose_environment__rows_of_two_types__are_chosen_or_mixed(tmp_path: Path):
    folder = write(tmp_path, [*(make_row(n) for n in TRAIN[:20]), *(make_short(n) for n in TRAIN[20:30])])
    with pytest.raises(OperatorError, match=r"several_types: .* 20 of type math, 10 of type short_answer"):
        choose_environment(None, folder)
    one = choose_environment("short_answer", folder)
    assert one is not None
    mixed = choose_environment("mixture", folder)
    assert mixed == EnvironmentSpec(
        kind="mixture",
        options={
            "parts": [
                {"weight": 20, "kind": "math", "options": one.options},
                {"weight": 10, "kind": "short_answer", "options": one.options},
            ]
        },
    )


def test_choose_environment__many_rows__weights_stay_in_their_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = write(tmp_path, [*(make_row(n) for n in TRAIN[:3]), *(make_short(n) for n in TRAIN[3:4])])
    monkeypatch.setattr(new_environment, "MAX_WEIGHT", 2)
    mixed = choose_environment("mixture", folder)
    assert mixed is not None
    assert [part["weight"] for part in mixed.options["parts"]] == [2, 1]
    assert MAX_WEIGHT > 1_000_000


def test_choose_environment__no_training_rows__says_what_there_is(tmp_path: Path):
    folder = write(tmp_path, [make_row(number) for number in HELD_OUT])
    with pytest.raises(OperatorError, match=r"no_training_rows: .* for the environment math; it has none"):
        choose_environment("math", folder)
    with pytest.raises(OperatorError, match=r"no_training_rows: .* for the environment of any type; it has none"):
        choose_environment(None, folder)
    other = write(tmp_path / "other", [make_row(number) for number in TRAIN])
    with pytest.raises(OperatorError, match=f"for the environment code; it has {len(TRAIN)} of type math"):
        choose_environment("code", other)


def test_import_data_set__rows_without_a_type__have_the_named_one(tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "What is 0 + 1?", "verification_info": {"ground_truth": "1"}}\n')
    import_data_set(str(file), tmp_path / "tasks", "math")
    assert choose_environment(None, tmp_path / "tasks") is not None
    with pytest.raises(OperatorError, match=r"unknown_task_type: rows.jsonl, row 1: .* with --environment"):
        import_data_set(str(file), tmp_path / "other", "mixture")


def test_import_data_set__data_set_that_was_imported__is_copied(tmp_path: Path):
    folder = write(tmp_path, [make_row(number) for number in TRAIN])
    import_data_set(str(folder), tmp_path / "copy", None)
    assert choose_environment(None, tmp_path / "copy") == choose_environment(None, folder)


@pytest.mark.parametrize("source", ["none.jsonl", "rows.csv"])
def test_import_data_set__source_that_cannot_be_read__is_refused(tmp_path: Path, source: str):
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(OperatorError, match=r"no_source|bad_source"):
        import_data_set(str(tmp_path / source), tmp_path / "tasks", "math")
    assert not (tmp_path / "tasks").exists()
