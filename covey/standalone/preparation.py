"""Prepares a run on one machine: its data set, environment, device, lengths and learner's settings.

Everything that the settings leave open is chosen here, as `covey init pool` chooses it for a pool.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import JsonValue

from covey.devnet.deploy import derive_wallet
from covey.engines.factory import choose_engine
from covey.engines.installation import find_device
from covey.environments import mixture, registry
from covey.environments.base import Environment, EnvironmentSpec, Grader, JsonObject
from covey.environments.python_rewards import KIND, PythonEnvironment, RewardFunction
from covey.errors import OperatorError
from covey.local.new_environment import choose_environment, import_data_set, is_row_kind
from covey.local.plan import read_shipped_params
from covey.local.sizing import Sizes, choose_sizes
from covey.model.model_names import find_model
from covey.model.tiny import tiny_folder
from covey.network.entry import load_environment
from covey.protocol.canonical import sha256
from covey.protocol.ids import Address, Hash
from covey.protocol.params import EnvironmentParams, ModelParams, TrainingParams, VerificationParams
from covey.runtime.files import write_atomically
from covey.standalone.config import TrainConfig
from covey.standalone.lenient_score import load_lenient
from covey.standalone.manifest import build_manifest
from covey.standalone.reward_file import load_reward, read_rows
from covey.standalone.run import RunPlan
from covey.tasks.catalog import DataSetCatalog
from covey.tasks.dataset import open_folder
from trainer.requirements import require_trainable

DATA_SET = Path("datasets") / "tasks"
"""Folder of the run's data set, below its home."""
CHOSEN = ("prompt_format", "max_prompt_tokens", "max_completion_tokens")
"""Settings of `sampling` that are chosen by the model and its questions if they are not set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """Where the questions of a run come from, and who grades."""

    params: EnvironmentParams
    load: Callable[[], Environment]
    """Function that loads the environment. Each thread needs its own."""
    grade: Grader | None = None
    """Grader that needs no isolation, because it is the user's own. None: answers are graded in a sandbox."""
    has_default_sizes: bool = False
    """Whether the lengths of the shipped pool.toml fit, because these are its questions."""
    from_pool: str | None = None
    """URL of the coordinator whose pool has these questions."""


def prepare(
    config: TrainConfig, *, questions: Questions | None = None, say: Callable[[str], None] = lambda line: None
) -> RunPlan:
    """Choose what the settings leave open, and check what a trainer would refuse. `say` receives a line per choice.

    `questions` replace those that the settings name. A data set is imported into the run's folder, unless the folder
    already has one.

    Raises the errors of `find_model`, `find_questions`, `choose_sizes` and `require_trainable`.
    """
    if config.device == "auto":
        config = config.model_copy(update={"device": find_device()})
    if config.model.path is not None:
        find_model(config.model.path)
    questions = questions or find_questions(config)
    environment, base, sampling = questions.load(), read_shipped_params(), config.sampling
    is_default = config.model.path is None and questions.has_default_sizes
    is_set = all(getattr(sampling, name) is not None for name in CHOSEN)  # then no question is drawn to measure it
    sizes = None if is_default or is_set else choose_sizes(config.model.path or tiny_folder(), environment, base)
    model = _choose_model(config, sizes, base.model, say)
    params = TrainingParams(
        environment=questions.params,
        model=model,
        grading=config.grading,
        group_size=sampling.group_size,
        groups_per_step=sampling.groups_per_step,
        groups_per_task=sampling.groups_per_task,
        max_staleness=sampling.max_staleness,
        online_filter=sampling.online_filter,
        max_sampling=sampling.max_sampling,
    )
    if config.eval.lenient_extraction is not None:
        spec = EnvironmentSpec(kind=questions.params.kind, options=questions.params.options)
        load_lenient(spec, config.eval.lenient_extraction)
    require_trainable(config, params, environment, source=config.model.path)
    engine, node = _choose_run_engine(config), sampling.node or derive_node(config.seed)
    return RunPlan(
        config=config,
        params=params,
        load_environment=questions.load,
        grade=questions.grade,
        engine=engine,
        node=node,
        manifest=build_manifest(config, params, engine=engine, node=node, from_pool=questions.from_pool),
    )


def find_questions(config: TrainConfig) -> Questions:
    """Return the questions that the settings name.

    Raises the errors of `import_data_set`, `choose_environment` and `load_environment`, or with a reward function those
    of `load_reward`, `read_rows` and `ask_rows`.
    """
    if config.data.reward is not None:
        return _find_rows(config, config.data.reward)
    data_set = _import(config)
    spec = choose_environment(config.data.environment, data_set) or registry.DEMO
    options = {**spec.options, **config.data.options}
    if spec.kind == mixture.KIND and data_set is not None:
        options["parts"] = _add_data_set(options["parts"], open_folder(data_set).digest)
    named = EnvironmentParams(kind=spec.kind, options=options)
    catalog = DataSetCatalog([] if data_set is None else [data_set])
    base = TrainingParams(environment=named)
    return Questions(
        params=named,
        load=partial(load_environment, base, catalog, config.list_interpreters()),
        has_default_sizes=config.data.environment is None and data_set is None,
    )


def ask_rows(rows: Sequence[Mapping[str, Any]], reward: RewardFunction, options: JsonObject | None = None) -> Questions:
    """Return rows of Python as questions, graded by a function of the completion and its row.

    Raises OperatorError("bad_rows"), and OperatorError("bad_environment") if an option is invalid.
    """
    environment = PythonEnvironment(rows, reward, options)
    named = f"{getattr(reward, '__module__', '')}:{getattr(reward, '__qualname__', repr(reward))}"
    digest = sha256(json.dumps(list(rows), sort_keys=True, default=str).encode())
    return Questions(
        params=EnvironmentParams(kind=KIND, options={"rows": digest, "reward": named, **(options or {})}),
        load=lambda: environment,  # it keeps no state, so threads can share it
        grade=lambda replies: [environment.grade(reply) for reply in replies],
    )


def derive_node(seed: int) -> Address:
    """Return the address of the node whose draws a run with this seed makes."""
    return derive_wallet(f"train-{seed}", "node").address


def _add_data_set(parts: JsonValue, digest: Hash) -> JsonValue:
    """Return the parts of a mixture. A part that draws rows and names no data set gets the run's own."""
    if not isinstance(parts, list):
        return parts  # the mixture refuses it
    return [
        {**part, "options": {"dataset": digest, **cast(dict[str, JsonValue], part.get("options") or {})}}
        if isinstance(part, dict) and is_row_kind(str(part.get("kind")))
        else part
        for part in parts
    ]


def _find_rows(config: TrainConfig, reward: Path) -> Questions:
    """Return the rows of `data.dataset`, graded by the function that the settings name."""
    if config.data.dataset is None or config.data.environment is not None:
        raise OperatorError(
            "bad_settings",
            "data.reward needs the rows of data.dataset, and no data.environment",
            fix="Set data.dataset to a file of rows with a prompt, and remove data.environment",
        )
    return ask_rows(read_rows(str(config.data.dataset)), load_reward(reward), config.data.options)


def _choose_run_engine(config: TrainConfig) -> str:
    """Return the name of the engine that generates. On a CPU "auto" is hf."""
    if config.sampling.engine == "auto" and config.device == "cpu":
        return "hf"
    return choose_engine(
        config.sampling.engine, VerificationParams(), role="worker", interpreter=config.sampling.vllm.interpreter
    )


def _import(config: TrainConfig) -> Path | None:
    """Return the folder of the run's data set. None if the environment generates its questions.

    Rows are imported again if their file is another one or has changed. Raises OperatorError("data_changed") if the
    run has already learned from other rows.
    """
    if config.data.dataset is None:
        return None
    folder, stamp_file = config.home / DATA_SET, config.home / DATA_SET.parent / "source.json"
    stamp = json.dumps(_describe_source(config.data.dataset))
    known = stamp_file.read_text() if stamp_file.exists() else ""
    if folder.exists() and (not config.data.dataset.exists() or known == stamp):
        return folder
    draft = folder.with_name(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.parent.mkdir(parents=True, exist_ok=True)
    import_data_set(str(config.data.dataset), draft, config.data.environment)
    if folder.exists() and open_folder(folder).digest != open_folder(draft).digest:
        if (config.home / "params.json").exists():
            shutil.rmtree(draft)
            raise OperatorError(
                "data_changed",
                f"the run in {config.home} was begun with other rows than {config.data.dataset} has now",
                fix="Restore the file, or set home to a new folder",
            )
        shutil.rmtree(folder)
    if folder.exists():
        shutil.rmtree(draft)
    else:
        draft.rename(folder)
    write_atomically(stamp_file, stamp.encode())
    return folder


def _describe_source(path: Path) -> list[object]:
    """Return what changes if the file at `path` changes. A folder and a name on a hub have only their name."""
    found = path.stat() if path.is_file() else None
    return [str(path), None if found is None else [found.st_size, found.st_mtime_ns]]


def _choose_model(
    config: TrainConfig, sizes: Sizes | None, base: ModelParams, say: Callable[[str], None]
) -> ModelParams:
    """Return lengths, number format and prompt format: those that are set, and otherwise those that suit the model."""
    sampling, chosen = config.sampling, dict[str, object]()
    for name, choice in ({} if sizes is None else sizes.list_choices()).items():
        if name in CHOSEN and getattr(sampling, name) is None:
            chosen[name] = choice.value
            say(f"{name} = {choice.value}: {choice.reason}")
    named = sampling.model_dump(
        include={"max_prompt_tokens", "max_completion_tokens", "prompt_format"}, exclude_none=True
    )
    dtype = config.model.dtype or ("float32" if config.device == "cpu" else "bfloat16")
    default: Mapping[str, object] = (
        base.model_dump(include={"max_prompt_tokens", "max_completion_tokens"}) if sizes is None else {}
    )
    return ModelParams.model_validate(
        {
            **default,
            **chosen,
            **named,
            "compute_dtype": dtype,
            "temperature": sampling.temperature,
            "chat_template_kwargs": sampling.chat_template_kwargs,
        }
    )
