"""`covey.train`, and the run that it returns."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.environments.python_rewards import RewardFunction
from covey.errors import OperatorError
from covey.python.event_loops import run_apart
from covey.runtime.files import read_lines
from covey.runtime.flat_tables import flatten

if TYPE_CHECKING:
    from trainer.monitoring.rollout_files import RolloutLine

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run on one machine. `covey.LocalRun("run")` opens its folder, and `covey.train` returns it."""

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))

    @property
    def policy(self) -> Path:
        """Folder of the newest policy, for `AutoModelForCausalLM.from_pretrained`.

        Raises OperatorError("no_policy") if the run has none yet.
        """
        folders = sorted(
            (path for path in (self.folder / "exports").glob("*") if path.name.isdecimal()),
            key=lambda path: int(path.name),
        )
        if not folders:
            raise OperatorError("no_policy", f"{self.folder} has no policy", fix="Train at least one step")
        return folders[-1]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Metrics of each step, oldest first: {"step": 3, "reward/mean": 0.61, "time/update": 0.3, ...}."""
        return self._read("update")

    @property
    def evaluations(self) -> dict[int, float]:
        """Mean reward on held-out questions by step."""
        return {line["step"]: line["reward"] for line in self._read("evaluation")}

    def rollouts(self, step: int) -> "list[RolloutLine]":
        """Return completions from which a step learned. Raises OperatorError("no_rollouts")."""
        from covey.protocol.ids import Step
        from trainer.monitoring.rollout_files import FOLDER, RolloutFiles

        return list(RolloutFiles(self.folder / FOLDER).read(Step(step)))

    def _read(self, event: str) -> list[dict[str, Any]]:
        file = self.folder / "metrics.jsonl"
        lines = [json.loads(line) for line in read_lines(file)] if file.exists() else []
        return [line for line in lines if line["event"] == event]


def train(
    model: str | Path | None = None,
    dataset: str | Path | Iterable[Row] | None = None,
    reward: RewardFunction | None = None,
    *,
    environment: str | None = None,
    out: str | Path = "run",
    config: str | Path | None = None,
    **settings: Any,
) -> LocalRun:
    """Train a model on this machine and return the run. An interrupted run in the folder `out` is resumed.

    `model` is a folder or a name on the Hugging Face Hub. None means the tiny model that is shipped with Covey.

    `dataset` is a file or folder of rows as `covey tasks import` reads them. With a `reward` function it is a sequence
    of rows, each a mapping with a "prompt" and whatever else the function needs. `reward(completion, row)` returns a
    number. Every eighth row is held out for evaluations.

    `environment` is a kind of environment without `reward`, for example "math" or "reasoning_gym:chain_sum".

    `config` is a TOML file as for `covey train`. `settings` override it, as values or as sections:
    `steps=40, optim={"learning_rate": 1e-5}, sampling={"group_size": 16}`.

    Raises OperatorError, whose `code` and `fix` say what to do.
    """
    from rich.console import Console

    from covey.engines.cpu_tuning import keep_torch_settings
    from covey.standalone.config import TrainConfig
    from covey.standalone.preparation import ask_rows, prepare
    from covey.standalone.run import run
    from trainer.monitoring.live_view import show_training

    if reward is None and dataset is not None and not isinstance(dataset, str | Path):
        raise OperatorError(
            "bad_rows", "rows of Python need a reward function", fix="Pass reward, a function of (completion, row)"
        )
    values = {**flatten(settings), "home": str(out), "model.path": None if model is None else str(model)}
    values["data.environment"] = environment
    questions = None
    if reward is not None:
        if dataset is None or isinstance(dataset, str | Path):
            raise OperatorError(
                "bad_rows",
                "a reward function needs rows of Python",
                fix='Pass dataset, for example [{"prompt": "..."}]',
            )
        questions = ask_rows([dict(row) for row in dataset], reward)
    elif dataset is not None:
        values["data.dataset"] = str(dataset)
    plan = prepare(TrainConfig.load(None if config is None else Path(config), values), questions=questions)
    with keep_torch_settings(), show_training(Console(), steps=plan.config.steps, advances_at="update") as sink:
        run_apart(lambda main_thread: run(plan, sinks=[sink], main_thread=main_thread))
    return LocalRun(plan.config.home)
