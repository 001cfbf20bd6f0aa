"""`covey.evaluate`: score models on questions, with intervals."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from covey.engines.cpu_tuning import keep_torch_settings
from covey.evaluation import evaluate as evaluation
from covey.evaluation.evaluated_policies import find_policies
from covey.evaluation.evaluation_config import choose_config
from covey.evaluation.evaluation_scores import EvaluationResults
from covey.python.event_loops import run_apart
from covey.standalone.main_thread import MainThread
from covey.standalone.run_questions import ask_as_run
from covey.tasks.catalog import DataSetCatalog


def evaluate(
    models: str | Path | Sequence[str | Path],
    tasks: str | Path | None = None,
    *,
    out: str | Path,
    items: int | None = None,
    step: int | None = None,
    datasets: Sequence[str | Path] = (),
    **settings: Mapping[str, Any],
) -> EvaluationResults:
    """Evaluate models on the same questions and return the scores. The folder `out` also gets samples and a report.

    `models` are folders of models, policies or runs; several are compared question by question. `tasks` is a file of
    rows, an environment kind, a generator such as "spell_backward", or a TOML file, and `items` the maximum number of
    questions. Without `tasks` the first model is a run, whose held-out questions are asked. `settings` are the
    sections of the TOML file, such as `sampling={"samples": 4, "temperature": 0.6}`. An interrupted
    evaluation in `out` is continued.

    Raises OperatorError, whose `code` and `fix` say what to do.
    """
    named = [str(model) for model in ([models] if isinstance(models, str | Path) else models)]
    changes: dict[str, Mapping[str, Any]] = {"tasks": {"items": items}, **settings}
    policies, folders = find_policies(named, step), [Path(each) for each in datasets]
    if tasks is None:
        config, own = ask_as_run(named[0], changes)
        folders += own
    else:
        config = choose_config(str(tasks), changes)
    is_left = threading.Event()

    def advance(_count: int) -> None:
        if is_left.is_set():
            raise CancelledError("the evaluation was interrupted; the same call continues it")

    observer = evaluation.EvaluationObserver(
        begin=lambda _total, _done: None, name=lambda _label: None, advance=advance
    )

    def ask(main_thread: MainThread | None) -> EvaluationResults:
        if main_thread is not None:
            main_thread.on_leave = is_left.set
        with DataSetCatalog(folders) as data_sets:
            return evaluation.evaluate(policies, config, Path(out), observer, data_sets=data_sets)

    with keep_torch_settings():
        return run_apart(ask)
