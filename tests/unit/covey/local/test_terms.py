"""The first model of a pool's folder, and the checks of its trainer before the pool is opened."""

import shutil
import tomllib
from pathlib import Path

import pytest
import tomlkit

from covey.environments.base import EnvironmentSpec
from covey.environments.task_draws import is_held_out
from covey.errors import OperatorError
from covey.local import terms
from covey.local.folder import create_pool_folder, read_processes, write_processes
from covey.local.plan import PoolPlan
from tests.fakes.tasks import make_data_set, make_row
from trainer.config import ModelSection

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("is_relative", [True, False])
def test_find_model__folder_of_a_pool__names_the_trainer_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    (tmp_path / "mine").mkdir()
    named = "mine" if is_relative else "a/model"
    settings = {"model": ModelSection(path=named)}
    monkeypatch.setattr(
        terms.TrainerConfig, "load", lambda file, environment: terms.TrainerConfig.model_construct(**settings)
    )
    assert terms.find_model(tmp_path) is None
    (tmp_path / "trainer.toml").write_text("")
    assert terms.find_model(tmp_path) == (tmp_path / "mine" if is_relative else "a/model")


def write_pool(folder: Path, rows: list[int], **trainer: dict[str, object]) -> Path:
    """Create a folder with a pool of mathematics on the tiny model, and change sections of its trainer's settings."""
    data_set = make_data_set(folder.parent / "tasks", [make_row(number) for number in rows])
    spec = EnvironmentSpec(kind="math", options={"dataset": data_set.digest})
    create_pool_folder(folder, PoolPlan(validators=1, environment=spec, data_set=folder.parent / "tasks"))
    settings = folder / "trainer.toml"
    values = tomllib.loads(settings.read_text())
    changed = {name: values.get(name, {}) | section for name, section in trainer.items()}
    settings.write_text(tomlkit.dumps(values | changed))
    return folder


TRAIN = [n for n in range(60) if not is_held_out(f"What is {n} + 1?")]
HELD_OUT = [n for n in range(60) if is_held_out(f"What is {n} + 1?")]


def test_require_trainable_pool__few_rows__are_enough(tmp_path: Path) -> None:
    terms.require_trainable_pool(write_pool(tmp_path / "mine", [*TRAIN[:20], *HELD_OUT[:2]]))


@pytest.mark.parametrize(
    ("rows", "trainer", "code"),
    [
        (TRAIN, {}, "no_held_out"),
        (HELD_OUT, {}, "bad_environment"),
        ([*TRAIN, *HELD_OUT], {"model": {"path": "./nothing"}}, "model_unavailable"),
        ([*TRAIN, *HELD_OUT], {"eval": {"max_batch": 0}}, "bad_settings"),
    ],
)
def test_require_trainable_pool__trainer_would_end__is_refused(
    tmp_path: Path, rows: list[int], trainer: dict[str, dict[str, object]], code: str
) -> None:
    folder = write_pool(tmp_path / "mine", rows, **trainer)
    with pytest.raises(OperatorError) as caught:
        terms.require_trainable_pool(folder)
    assert caught.value.code == code


def test_require_trainable_pool__data_set_was_removed__is_refused(tmp_path: Path) -> None:
    folder = write_pool(tmp_path / "mine", [*TRAIN, *HELD_OUT])
    shutil.rmtree(folder / "datasets" / "tasks")
    with pytest.raises(OperatorError, match="no_dataset: "):
        terms.require_trainable_pool(folder)


def test_require_trainable_pool__options_of_a_kind_are_missing__names_them_on_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    create_pool_folder(folder, PoolPlan(validators=1, environment=EnvironmentSpec(kind="math")))
    with pytest.raises(OperatorError, match=r"bad_environment: .* environment math are invalid: dataset: missing\. "):
        terms.require_trainable_pool(folder)


def test_require_trainable_pool__trainer_runs_elsewhere__is_not_checked(tmp_path: Path) -> None:
    folder = write_pool(tmp_path / "mine", TRAIN)
    commands = read_processes(folder)
    del commands["trainer"]
    write_processes(folder / "processes.toml", commands)
    terms.require_trainable_pool(folder)
