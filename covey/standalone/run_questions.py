"""The held-out questions of a run, for `covey eval` without other questions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from covey.environments.python_rewards import KIND
from covey.errors import OperatorError
from covey.evaluation.evaluation_config import EvaluationConfig, read_config
from covey.protocol.params import TrainingParams
from covey.standalone.manifest import FILE, read_manifest


def ask_as_run(model: str, changes: Mapping[str, Mapping[str, Any]]) -> tuple[EvaluationConfig, list[Path]]:
    """Return settings that ask a run's held-out questions as the run asks them, and the folders of its data sets.

    `model` is the folder of a run, or of a policy in it. `changes` are as in `choose_config`.

    Raises OperatorError("bad_evaluation") if it is neither or a Python function graded, and the errors of
    `read_manifest` and `read_config`.
    """
    folder = next(
        (path for path in (Path(model), Path(model).resolve().parent.parent) if (path / FILE).is_file()), None
    )
    if folder is None:
        raise OperatorError(
            "bad_evaluation",
            f"there are no questions, because --tasks is missing and {model} is not a run of covey train",
            fix="Add --tasks with a file of rows, an environment kind or a TOML file",
        )
    manifest = read_manifest(folder)
    params, evaluation = TrainingParams.model_validate(manifest.params), manifest.settings["eval"]
    if params.environment.kind == KIND:
        raise OperatorError(
            "bad_evaluation",
            f"a Python function graded the run in {folder}, so its questions cannot be asked here",
            fix="Add --tasks with other questions, or continue the run, which evaluates its policies",
        )
    own = {
        "tasks": {
            "kind": params.environment.kind,
            "options": dict(params.environment.options),
            "items": evaluation["prompts"],
        },
        "prompt": {
            "format": params.model.prompt_format,
            "chat_template_kwargs": dict(params.model.chat_template_kwargs),
        },
        "sampling": {
            "samples": evaluation["samples"],
            "temperature": params.model.temperature,
            "max_tokens": params.model.max_completion_tokens,
        },
        "engine": {"dtype": params.model.compute_dtype},
        "grading": params.grading.model_dump(),
    }
    for table, values in changes.items():
        own[table] = {**own.get(table, {}), **{name: value for name, value in values.items() if value is not None}}
    data_sets = folder / "datasets"
    return read_config(None, own), [data_sets] if manifest.data and data_sets.is_dir() else []
