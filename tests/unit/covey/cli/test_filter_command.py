"""`covey tasks filter` on the shipped model: what it asks, writes and refuses."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from covey.cli import task_filter
from covey.console.account import read_pool_file
from covey.environments import registry
from covey.environments.base import EnvironmentSpec
from covey.environments.question_mask import unpack_kept
from covey.model.tiny import tiny_folder
from tests.unit.conftest import TOKEN, Answer, Command

pytestmark = pytest.mark.unit


@pytest.fixture
def run_filter(pool: Path, command: Command) -> Command:
    """Return a function that runs the command with the shipped tiny model."""

    def run(*options: str) -> Answer:
        common = ["--model", str(tiny_folder()), "--out", str(pool.parent / "out.jsonl"), "--engine", "hf"]
        return command("tasks", "filter", str(pool), *common, *options)

    return run


def read_passes(pool: Path) -> dict[int, int]:
    rows = [json.loads(line) for line in (pool.parent / "out.jsonl").read_text().splitlines()]
    return {row["number"]: row["passes"] for row in rows[1:]}


def test_filter__shipped_model__writes_a_pool_of_the_questions_it_half_knows(run_filter: Command, pool: Path) -> None:
    pool.write_text(pool.read_text().replace("[params.model]", 'fingerprint = "0x' + "11" * 32 + '"\n[params.model]'))
    code, out, err = run_filter("--items", "24", "--write")
    assert (code, err) == (0, "")
    passes = read_passes(pool)
    wanted = [number for number in range(24) if 1 <= passes[number] <= 4]
    assert 4 < len(wanted) < 24
    assert f"kept {len(wanted)} of 24 prompts" in out
    assert f"written to {pool}" in out
    _, _, params = read_pool_file(pool, TOKEN)  # the fingerprint of the old prompts would be refused
    options: dict[str, Any] = dict(params.environment.options)
    assert unpack_kept(options.pop("kept")) == wanted
    whole = registry.load(EnvironmentSpec(kind="reasoning_gym", options=options))
    kept = registry.load(EnvironmentSpec(kind="reasoning_gym", options=params.environment.options))
    assert {kept.prompt(draw).text for draw in range(400)} == {whole.prompt(number).text for number in wanted}
    assert "# public: 3600" in pool.read_text()


def test_filter__stopped_and_run_again__asks_the_rest_alone_and_ends_the_same(
    run_filter: Command, pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, asked = task_filter.count_passes, []

    def count(numbers: list[int], *args: Any, **kwargs: Any) -> Any:
        if asked[3:] == [] and len(asked) == 3:
            asked.append([])
            raise KeyboardInterrupt
        asked.append(numbers)
        return original(numbers, *args, **kwargs)

    monkeypatch.setattr(task_filter, "count_passes", count)
    options = ("--items", "20", "--batch", "32", "--pass-k", "8", "--json")
    before = pool.read_bytes()
    assert run_filter(*options)[0] != 0
    assert list(read_passes(pool)) == list(range(12))
    code, out, _ = run_filter(*options)
    assert code == 0
    assert asked == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [], [12, 13, 14, 15], [16, 17, 18, 19]]
    found = json.loads(out)
    assert found["items"] == sum(found["by_passes"].values()) == 20
    assert found["kept"] == len(unpack_kept(found["option"])) == sum(found["by_passes"][str(n)] for n in range(1, 5))
    assert pool.read_bytes() == before
    (pool.parent / "out.jsonl").unlink()
    assert json.loads(run_filter(*options)[1]) == found  # equal turns have equal batches, so equal answers


def test_filter__other_bounds_on_the_same_results__asks_nothing(
    run_filter: Command, pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = task_filter.SolveTrial(
        kind="reasoning_gym", options=tomllib.loads(pool.read_text())["params"]["environment"]["options"],
        model=str(tiny_folder()), engine="hf", dtype="bfloat16", pass_k=8, seed=0, temperature=1.0,
        max_prompt_tokens=64, max_completion_tokens=8,
    )  # fmt: skip
    task_filter.Results(pool.parent / "out.jsonl", head).add({0: 0, 1: 8, 2: 4, 3: 5, 4: None})
    monkeypatch.setattr(task_filter, "count_passes", lambda *_, **__: pytest.fail("asked"))
    found = json.loads(run_filter("--items", "5", "--low", "0.6", "--high", "1", "--json")[1])
    assert (found["kept"], found["too_long"], unpack_kept(found["option"])) == (2, 1, [1, 3])
    code, _, err = run_filter("--items", "5", "--low", "0.9", "--high", "0.95")
    assert (code, err.startswith("covey: nothing_kept: ")) == (1, True)
    code, _, err = run_filter("--items", "5", "--low", "0.6", "--high", "0.5")
    assert (code, err.startswith("covey: bad_bounds: ")) == (1, True)
    code, _, err = run_filter("--items", "5", "--seed", "1")
    assert (code, err.startswith("covey: another_filter: ")) == (1, True)


def test_filter__more_than_a_pools_parameters_hold__is_refused(
    run_filter: Command, pool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_filter, "count_passes", lambda numbers, *_, **__: dict.fromkeys(numbers, 3))
    code, _, err = run_filter("--items", "100000", "--batch", "800000", "--write")
    assert (code, err.startswith("covey: too_many_questions: ")) == (1, True)
    assert "kept" not in pool.read_text()


def test_filter__no_such_pool_file__is_refused(run_filter: Command, pool: Path) -> None:
    pool.unlink()
    code, _, err = run_filter()
    assert (code, err.startswith("covey: no_pool_file: ")) == (1, True)
