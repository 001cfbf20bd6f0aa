"""Modules with the functions of wandb, mlflow and trackio that Covey calls. They record the calls.

Signatures are those of wandb 0.31, mlflow 3.17 and trackio 0.43, without the arguments that are not used.
"""

import importlib.util
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

LOGGED = "logged"
Calls = list[tuple[Any, ...]]


class FakeMlflowError(Exception):
    """The error of a server that does not answer, which a metric of this value causes."""

    VALUE = -1.0


def install_fakes(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Let imports of the three packages find the fakes. Return the list to which they add each call."""
    calls: Calls = []
    modules = {"wandb": _build_wandb(calls), "trackio": _build_trackio(calls), **_build_mlflow(calls)}
    for name, functions in modules.items():
        module = ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in modules else found(name))
    return calls


def _build_wandb(calls: Calls) -> dict[str, Any]:
    def init(*, project: str, name: str, id: str, resume: str, dir: str, config: dict[str, Any], settings: Any) -> Any:
        assert resume == "allow"
        calls.extend([("begun", project, name, config), ("console", settings.console)])

        def log(data: dict[str, Any]) -> None:
            calls.append((LOGGED, id, data.pop("step"), data))

        def define_metric(name: str, *, step_metric: str | None = None, hidden: bool | None = None) -> None:
            calls.append(("defined", name, step_metric))

        return SimpleNamespace(log=log, define_metric=define_metric, finish=lambda: calls.append(("ended",)))

    return {"init": init, "Settings": SimpleNamespace}


def _build_trackio(calls: Calls) -> dict[str, Any]:
    def init(project: str, *, name: str, resume: str, config: dict[str, Any], embed: bool) -> Any:
        assert (resume, embed) == ("allow", False)
        calls.append(("begun", project, name, config))
        return SimpleNamespace(log=lambda metrics, step: calls.append((LOGGED, name, step, metrics)))

    return {"init": init, "finish": lambda: calls.append(("ended",))}


def _build_mlflow(calls: Calls) -> dict[str, dict[str, Any]]:
    class MlflowClient:
        def __init__(self, tracking_uri: str | None) -> None:
            calls.append(("client", tracking_uri))

        def get_experiment_by_name(self, name: str) -> Any:
            made = any(call[0] == "experiment" for call in calls)
            return SimpleNamespace(experiment_id="1") if made else None

        def create_experiment(self, name: str) -> str:
            calls.append(("experiment", name))
            return "1"

        def create_run(self, experiment_id: str, *, run_name: str) -> Any:
            self.name = run_name
            return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

        def update_run(self, run_id: str, *, status: str) -> None:
            calls.append(("status", run_id, status))

        def log_batch(self, run_id: str, *, metrics: Any = (), params: Any = ()) -> None:
            if params:
                project = next(call[1] for call in calls if call[0] == "experiment")
                calls.append(("begun", project, self.name, {each.key: each.value for each in params}))
                return
            if any(each.value == FakeMlflowError.VALUE for each in metrics):
                raise FakeMlflowError("no answer")
            steps = {each.step for each in metrics} or {None}
            calls.append((LOGGED, run_id, *steps, {each.key: each.value for each in metrics}))

        def set_terminated(self, run_id: str) -> None:
            calls.append(("ended",))

    @dataclass
    class Metric:
        key: str
        value: float
        timestamp: int
        step: int

    @dataclass
    class Param:
        key: str
        value: str

    return {
        "mlflow": {"MlflowClient": MlflowClient, "is_tracking_uri_set": lambda: False},
        "mlflow.entities": {"Metric": Metric, "Param": Param},
        "mlflow.exceptions": {"MlflowException": FakeMlflowError},
    }
