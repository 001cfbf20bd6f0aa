"""Runs an evaluation from its settings to its results, and continues one that was interrupted.

Main name: `evaluate`. The folder of an evaluation has these files:
- `evaluation.json`: models, questions and settings
- `questions.jsonl`: the questions as they are asked, with what grades them
- `samples.jsonl`: one completion per line
- `results.json` and `report.html`: the results, once all completions are there
"""

import json
import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from pydantic import JsonValue

from covey.engines.factory import build_engine, choose_engine
from covey.environments.base import DataSets, refuse_data_sets
from covey.evaluation.evaluated_policies import EvaluatedPolicy, compute_policy_digest, prepare_folder
from covey.evaluation.evaluation_config import EvaluationConfig
from covey.evaluation.evaluation_page import build_report
from covey.evaluation.evaluation_run import EvaluationRun, Graders, encode_questions, list_keys
from covey.evaluation.evaluation_scores import EvaluationResults, compute_results
from covey.evaluation.question_file import QuestionFile, write_questions
from covey.evaluation.sample_log import SampleLog
from covey.model.policy_files import load_tokenizer, read_context
from covey.model.prompts import PromptFormat, require_stable_template
from covey.protocol.params import ModelParams, VerificationParams
from covey.runtime.files import write_atomically
from covey.runtime.settings import SandboxSettings

QUESTIONS_NAME, RESULTS_NAME, REPORT_NAME = "questions.jsonl", "results.json", "report.html"
VLLM_TURN = 8
"""Number of batches that vLLM gets in one call. Its batches change as completions end, so long calls are faster."""
_PACKAGES = ("covey", "torch", "transformers", "vllm")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationObserver:
    """Functions that an evaluation calls as it goes on."""

    begin: Callable[[int, int], None]
    """Called once with the number of completions, and how many of them exist already."""
    name: Callable[[str], None]
    """Called with the label of the model that is evaluated next."""
    advance: Callable[[int], None]
    """Called with the number of completions that were written."""


def evaluate(
    policies: Sequence[EvaluatedPolicy],
    config: EvaluationConfig,
    out: Path,
    observer: EvaluationObserver,
    *,
    data_sets: DataSets = refuse_data_sets,
    is_lenient: bool = False,
) -> EvaluationResults:
    """Evaluate models on the same questions, write the files of the folder `out`, and return the results.

    `is_lenient` skips rows that cannot be read or graded. Raises the errors of `write_questions`, `SampleLog.open`,
    `GradingPool`, `require_stable_template` and the engine.
    """
    config = config.choose_device()
    with ExitStack() as stack:
        log = stack.enter_context(SampleLog(out))
        draft = out / f".{QUESTIONS_NAME}"
        stack.callback(draft.unlink, missing_ok=True)
        questions = write_questions(config.tasks, draft, data_sets=data_sets, is_lenient=is_lenient)
        graders = stack.enter_context(Graders(questions, config.grading, SandboxSettings.load(None)))
        models = [_Model(policy, stack) for policy in policies]
        identity, details = _describe(models, config, questions, graders)
        log.open(identity, details)
        questions = questions.move(out / QUESTIONS_NAME)
        keys = [key for i in range(len(models)) for key in list_keys(i, len(questions), config.sampling.samples)]
        missing = log.list_missing(keys)
        observer.begin(len(keys), len(keys) - len(missing))
        for number, model in enumerate(models):
            if any(key[0] == number for key in missing):
                observer.name(model.policy.label)
                _run(number, model, config, questions, graders, log, observer.advance)
        results = compute_results(
            log.records,
            [model.policy.label for model in models],
            samples=config.sampling.samples,
            groups=[questions.read(index).labels for index in range(len(questions))],
            skipped=questions.skipped,
            has_confidence=questions.layout == "hle",
        )
        text = json.dumps(results.to_json() | {"settings": identity, "details": details}, indent=2, allow_nan=False)
        write_atomically(out / RESULTS_NAME, text.encode() + b"\n")
        write_atomically(out / REPORT_NAME, build_report(results, log, questions, config).encode())
        return results


class _Model:
    """A model and its folder, which is prepared when it is needed."""

    def __init__(self, policy: EvaluatedPolicy, stack: ExitStack) -> None:
        self.policy, self._stack = policy, stack
        self._folder: Path | None = None
        source = Path(policy.source)
        self.digest = compute_policy_digest(source if source.is_dir() else self.prepare())

    def prepare(self) -> Path:
        """Return a folder that every engine loads. A copy that this needs is removed with the stack."""
        if self._folder is None:
            scratch = self._stack.enter_context(TemporaryDirectory(prefix="covey-eval-"))
            self._folder = prepare_folder(self.policy, Path(scratch))
        return self._folder


def _describe(
    models: Sequence[_Model], config: EvaluationConfig, questions: QuestionFile, graders: Graders
) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Return what the results depend on, and what a reader may want to know in addition."""
    identity = {
        "models": [model.digest for model in models],
        "questions": questions.digest,
        "prompt": config.prompt.model_dump(mode="json"),
        "sampling": config.sampling.model_dump(mode="json"),
        "engine": {"name": _choose_engine(config), "dtype": config.engine.compute_dtype},
        "grading": config.grading.model_dump(mode="json"),
        "versions": dict(graders.versions),
    }
    installed = {package: _find_version(package) for package in _PACKAGES}
    details = {
        "models": [asdict(model.policy) for model in models],
        "tasks": config.tasks.model_dump(mode="json"),
        "engine": config.engine.model_dump(mode="json"),
        "packages": {name: version for name, version in installed.items() if version},
        "machine": platform.platform(),
    }
    return cast(dict[str, JsonValue], identity), cast(dict[str, JsonValue], details)


def _run(
    number: int,
    model: _Model,
    config: EvaluationConfig,
    questions: QuestionFile,
    graders: Graders,
    log: SampleLog,
    advance: Callable[[int], None],
) -> None:
    """Sample what one model lacks, on an engine of its own."""
    folder, table, name = model.prepare(), config.engine, _choose_engine(config)
    tokenizer, context = load_tokenizer(folder), read_context(folder)
    is_chat = config.prompt.format == "chat" or (config.prompt.format == "auto" and tokenizer.chat_template is not None)
    params = ModelParams(
        prompt_format="chat" if is_chat else "raw", chat_template_kwargs=config.prompt.chat_template_kwargs
    )
    format = PromptFormat.of(params)
    if is_chat:
        has_system = any(questions.read(index).prompt.system for index in range(min(64, len(questions))))
        require_stable_template(tokenizer, format, has_system=has_system, unopened=graders.unopened_tags)
    prompts = encode_questions(questions, tokenizer, format)
    longest = max(map(len, prompts)) + config.sampling.max_tokens
    vllm = table.vllm.fit(longest if context is None else min(longest, context))
    engine = build_engine(
        name, dtype=table.compute_dtype, batch=table.batch, device=table.device, threads=table.threads, vllm=vllm
    )
    try:
        engine.load_policy(folder, 0)
        run = EvaluationRun(
            log=log,
            questions=questions,
            graders=graders,
            engine=engine,
            model=number,
            prompts=prompts,
            sampling=config.sampling,
            context=context,
            turn=table.batch * (VLLM_TURN if name == "vllm" else 1),
        )
        run.fill(advance)
    finally:
        engine.close()


def _choose_engine(config: EvaluationConfig) -> str:
    return choose_engine(
        config.engine.name, VerificationParams(), role="worker", interpreter=config.engine.vllm.interpreter
    )


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
