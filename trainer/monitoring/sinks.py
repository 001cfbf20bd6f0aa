"""Sinks of metrics for other programs: TensorBoard, Weights & Biases, MLflow and trackio.

They receive the numbers of updates and evaluations with their steps. Each package is an extra, and is imported only if
a setting names it. A resumed process continues the run of the tracker, whose id is in HOME/sinks.json.
"""

import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from covey.runtime.files import write_atomically
from covey.runtime.flat_tables import flatten
from covey.runtime.log import get_logger
from trainer.config import LEARNING, LearningSettings, Tracker
from trainer.monitoring.metrics import Sink, Values

IDS_FILE = "sinks.json"


@contextmanager
def open_sinks(config: LearningSettings) -> Iterator[list[Sink]]:
    """Yield the sinks that the settings name, and close them at the end. Their packages must be installed."""
    config.home.mkdir(parents=True, exist_ok=True)
    openers: dict[Tracker, Callable[[LearningSettings], AbstractContextManager[Sink]]] = {
        "wandb": _open_wandb,
        "mlflow": _open_mlflow,
        "trackio": _open_trackio,
    }
    with ExitStack() as stack:
        sinks = [open_tensorboard(config.home / "tensorboard")] if config.log.tensorboard else []
        yield [*sinks, *(stack.enter_context(openers[name](config)) for name in dict.fromkeys(config.log.sinks))]


def select_numbers(event: str, values: Values) -> dict[str, float]:
    """Return the numbers that a sink receives. Those of an evaluation are named "evaluation/...".

    Nothing is returned for other events.
    """
    prefix = {"update": "", "evaluation": "evaluation/"}.get(event)
    if prefix is None:
        return {}
    return {f"{prefix}{name}": value for name, value in values.items() if isinstance(value, float | int)}


def open_tensorboard(folder: Path) -> Sink:
    """Return a sink that writes updates and evaluations to TensorBoard, as scalars by name."""
    from tensorboard.summary import Writer  # type: ignore[import-untyped]

    writer = Writer(str(folder))

    def write(event: str, step: int, values: Values) -> None:
        for name, value in select_numbers(event, values).items():
            writer.add_scalar(name, value, step=step)
        writer.flush()

    return write


@contextmanager
def _open_wandb(config: LearningSettings) -> Iterator[Sink]:
    """Yield a sink for Weights & Biases, which WANDB_MODE=offline keeps on this machine.

    An evaluation may follow updates of later steps. The step is therefore a metric of its own, because W&B ignores
    what is logged at an earlier step of its own count.
    """
    import wandb

    ids = _read_ids(config.home)
    run = wandb.init(
        project=config.log.project,
        name=_get_name(config),
        id=ids.get("wandb") or _write_id(config.home, "wandb", secrets.token_hex(4)),
        resume="allow",
        dir=str(config.home),
        config=_list_settings(config),
        settings=wandb.Settings(console="off"),  # it would otherwise replace the streams that the live view uses
    )
    run.define_metric("step", hidden=True)
    run.define_metric("*", step_metric="step")

    def write(event: str, step: int, values: Values) -> None:
        if numbers := select_numbers(event, values):
            run.log({"step": step, **numbers})

    try:
        yield write
    finally:
        run.finish()


@contextmanager
def _open_mlflow(config: LearningSettings) -> Iterator[Sink]:
    """Yield a sink for MLflow: at MLFLOW_TRACKING_URI, or in HOME/mlflow.db.

    A server that fails later does not stop the training. The failure is logged.
    """
    import mlflow
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    home = config.home.absolute()
    client = mlflow.MlflowClient(None if mlflow.is_tracking_uri_set() else f"sqlite:///{home / 'mlflow.db'}")
    run_id = _read_ids(home).get("mlflow")
    if run_id is None:
        found = client.get_experiment_by_name(config.log.project)
        experiment = client.create_experiment(config.log.project) if found is None else found.experiment_id
        run_id = _write_id(home, "mlflow", client.create_run(experiment, run_name=_get_name(config)).info.run_id)
        client.log_batch(run_id, params=[Param(name, str(value)) for name, value in _list_settings(config).items()])
    client.update_run(run_id, status="RUNNING")

    def write(event: str, step: int, values: Values) -> None:
        now = int(time.time() * 1000)
        numbers = select_numbers(event, values)
        try:
            client.log_batch(run_id, metrics=[Metric(name, value, now, step) for name, value in numbers.items()])
        except MlflowException as error:
            get_logger().warning("metrics not sent to MLflow", step=step, reason=str(error))

    try:
        yield write
    finally:
        client.set_terminated(run_id)


@contextmanager
def _open_trackio(config: LearningSettings) -> Iterator[Sink]:
    """Yield a sink for trackio, whose data is in TRACKIO_DIR or in the cache of Hugging Face."""
    import trackio

    with redirect_stdout(sys.stderr):
        run = trackio.init(
            project=config.log.project,
            name=_get_name(config),
            resume="allow",
            config=_list_settings(config),
            embed=False,
        )

    def write(event: str, step: int, values: Values) -> None:
        if numbers := select_numbers(event, values):
            run.log(numbers, step=step)

    try:
        yield write
    finally:
        with redirect_stdout(sys.stderr):
            trackio.finish()


def _get_name(config: LearningSettings) -> str:
    return config.log.run_name or config.home.absolute().name


def _list_settings(config: LearningSettings) -> dict[str, Any]:
    """Return the settings of learning by name, for example "optim.learning_rate"."""
    return flatten(config.model_dump(mode="json", include=LEARNING, exclude_none=True))


def _read_ids(home: Path) -> dict[str, str]:
    file = home / IDS_FILE
    return json.loads(file.read_bytes()) if file.exists() else {}


def _write_id(home: Path, name: str, value: str) -> str:
    """Keep the id that a tracker's run has, and return it."""
    write_atomically(home / IDS_FILE, json.dumps({**_read_ids(home), name: value}).encode())
    return value
