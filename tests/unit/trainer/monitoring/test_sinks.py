"""Metrics reach other programs with their steps, and a resumed process continues their runs.

The programs' packages are not part of the development environment. `tests/fakes/trackers.py` has what is called, and
`tests/integration/test_sinks.py` calls the packages themselves where they are installed.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.fakes.trackers import LOGGED, FakeMlflowError, install_fakes
from trainer.config import TrainerConfig
from trainer.monitoring.sinks import open_sinks, open_tensorboard

pytestmark = pytest.mark.unit
PLACES = {"pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o", "rpc_url": "https://node/secretkey"}


def make_config(home: Path, **log: object) -> TrainerConfig:
    values = {**PLACES, "home": home, "optim": {"learning_rate": 2e-6}, "log": {"project": "spelling", **log}}
    return TrainerConfig.model_validate(values)


def write(config: TrainerConfig, steps: range) -> None:
    with open_sinks(config) as sinks:
        for sink in sinks:
            for step in steps:
                sink("update", step, {"reward/mean": step / 8, "record_hash": "0x1"})
            sink("evaluation", steps[0], {"reward": 0.5, "n": 64})
            sink("policy", steps[0], {"time": 1.0})


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    return install_fakes(monkeypatch)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_open_sinks__a_run_that_is_resumed__is_one_run_with_all_numbers(tmp_path: Path, calls: list[Any], name: str):
    config = make_config(tmp_path / "run", sinks=(name,))
    write(config, range(2))
    write(config, range(2, 4))
    logged = [call[1:] for call in calls if call[0] == LOGGED]
    assert {run for run, _, _ in logged} == {logged[0][0]}
    assert [(step, numbers) for _, step, numbers in logged if numbers] == [
        (0, {"reward/mean": 0.0}), (1, {"reward/mean": 0.125}), (0, {"evaluation/reward": 0.5, "evaluation/n": 64}),
        (2, {"reward/mean": 0.25}), (3, {"reward/mean": 0.375}), (2, {"evaluation/reward": 0.5, "evaluation/n": 64}),
    ]  # fmt: skip
    begun = [call for call in calls if call[0] == "begun"]
    assert all(call[1:3] == ("spelling", "run") for call in begun)
    assert begun[0][3]["optim.learning_rate"] in (2e-6, "2e-06")
    assert not any("secret" in str(call) for call in calls)
    assert [call[0] for call in calls].count("ended") == 2


def test_open_sinks__wandb__orders_by_a_metric_and_leaves_the_terminal_alone(tmp_path: Path, calls: list[Any]):
    write(make_config(tmp_path, sinks=("wandb",), run_name="first"), range(1))
    assert ("defined", "*", "step") in calls
    assert ("console", "off") in calls
    assert [call[2] for call in calls if call[0] == "begun"] == ["first"]
    assert json.loads((tmp_path / "sinks.json").read_text()).keys() == {"wandb"}


def test_open_sinks__mlflow_without_an_address__uses_a_file_of_the_run(tmp_path: Path, calls: list[Any]):
    write(make_config(tmp_path, sinks=("mlflow",)), range(1))
    assert ("client", f"sqlite:///{tmp_path / 'mlflow.db'}") in calls


def test_open_sinks__mlflow_server_fails__is_a_warning(tmp_path: Path, calls: list[Any]):
    with capture_logs() as logs, open_sinks(make_config(tmp_path, sinks=("mlflow",))) as sinks:
        sinks[0]("update", 7, {"reward/mean": FakeMlflowError.VALUE})
    assert [(log["event"], log["step"]) for log in logs] == [("metrics not sent to MLflow", 7)]


def test_open_sinks__an_error_in_the_run__still_closes_them(tmp_path: Path, calls: list[Any]):
    with pytest.raises(KeyError), open_sinks(make_config(tmp_path, sinks=("wandb", "mlflow", "trackio"))):
        raise KeyError
    assert [call[0] for call in calls].count("ended") == 3


def test_open_tensorboard__updates_and_evaluations__are_scalars_by_name(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    write = open_tensorboard(tmp_path)
    write("update", 3, {"reward/mean": 0.25, "staleness_mean": 1.5})
    write("update", 4, {"reward/mean": 0.5})
    write("evaluation", 4, {"reward": 0.75, "n": 512})
    write("policy", 4, {"record_hash": "0x1", "time": 1.0})
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    scalars = {
        tag: [(event.step, float(make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }
    assert scalars == {
        "reward/mean": [(3, 0.25), (4, 0.5)], "staleness_mean": [(3, 1.5)],
        "evaluation/reward": [(4, 0.75)], "evaluation/n": [(4, 512.0)]
    }  # fmt: skip


def test_install_fakes__names__are_modules(calls: list[Any]):
    import mlflow

    assert isinstance(mlflow, ModuleType)
    assert calls == []
