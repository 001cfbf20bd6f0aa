"""Settings of an evaluation, from a TOML file and the options of `covey eval`.

Main names: `EvaluationConfig`, `read_config`. Examples are in configs/evaluations.
"""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from covey.engines.installation import find_device
from covey.engines.vllm.vllm_options import VllmOptions
from covey.environments.base import JsonObject
from covey.errors import OperatorError
from covey.evaluation.row_layouts import LayoutName
from covey.protocol.params import GradingParams
from covey.runtime.settings import read_toml
from covey.runtime.validation import explain
from covey.tasks.dataset_row import is_task_type

UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "top_p": (1, 1.0),
    "top_k": (0, -1),
    "min_p": (0, 0.0),
    "repetition_penalty": (1, 1.0),
    "presence_penalty": (0, 0.0),
    "frequency_penalty": (0, 0.0),
}
"""Settings of other samplers, with the values that have no effect. Other values are refused."""


_ROW_ENDINGS = (".jsonl", ".ndjson", ".json", ".parquet", ".gz", ".zst")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskChoice(_Table):
    """Table [tasks]: which questions are asked."""

    file: Path | None = None
    """File or folder of rows, as JSON lines or Parquet. Relative to the working directory."""
    format: LayoutName | None = None
    """Layout of the rows. None: the first one that the first row fits."""
    kind: str | None = None
    """Environment kind that supplies the questions instead of a file. Its held-out questions are asked."""
    options: dict[str, JsonValue] = {}
    """Options of the environment, such as `instruction`, `extraction`, `system_prompt` and `thinking_required`."""
    items: int | None = Field(default=None, ge=1, le=1_000_000)
    """Maximum number of questions, the first ones. None: all rows of a file, and 200 questions of a kind."""
    since: datetime.date | None = None
    """First contest date of LiveCodeBench, for example 2024-08-01. None: no limit."""
    until: datetime.date | None = None
    """Last contest date of LiveCodeBench. None: no limit."""

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.file is None) == (self.kind is None):
            raise ValueError("exactly one of file and kind must be set")
        if self.kind is not None and (self.format or self.since or self.until):
            raise ValueError("format, since and until are for rows of a file")
        return self


class PromptChoice(_Table):
    """Table [prompt]: how a question becomes the text that the model reads."""

    format: Literal["auto", "raw", "chat"] = "auto"
    """"chat" for the model's chat template, "raw" for the text and a newline. "auto": "chat" if the model has one."""
    chat_template_kwargs: dict[str, JsonValue] = {}
    """Arguments of the chat template, for example {"enable_thinking": false}."""


class SamplingChoice(_Table):
    """Table [sampling]: how completions are sampled."""

    samples: int = Field(default=1, ge=1, le=4096)
    """Number of completions of each question."""
    temperature: float = Field(default=0.6, ge=0, le=10, allow_inf_nan=False)
    """Sampling temperature, 0 for the most likely token or at least 0.01."""
    max_tokens: int = Field(default=2048, ge=1, le=1 << 20)
    """Maximum number of tokens of a completion. The model's context may end it sooner."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of all completions. Each one has its own noise, by question and number of the completion."""

    @model_validator(mode="after")
    def _require_noise(self) -> Self:
        if 0 < self.temperature < 0.01:
            raise ValueError("temperature must be 0 or at least 0.01")
        if self.temperature == 0 and self.samples > 1:
            raise ValueError("samples must be 1 at temperature 0, because all completions would be equal")
        return self


class EngineTable(_Table):
    """Table [engine]: what computes the completions."""

    name: Literal["auto", "hf", "vllm"] = "auto"
    """Inference engine. "auto": vllm if it is installed, otherwise hf."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type that the engine computes in. "auto": float32 on a CPU, bfloat16 elsewhere."""
    batch: int = Field(default=64, ge=1)
    """Number of completions generated together."""
    device: str = "auto"
    """Device of the engine, for example "cuda:0". "auto": a GPU if torch finds one, and the CPU otherwise."""
    threads: int = Field(default=1, ge=1, le=1024)
    """Number of CPU threads that torch uses."""
    vllm: VllmOptions = VllmOptions()
    """Settings of vLLM, as in the table [vllm] of a worker."""

    @property
    def compute_dtype(self) -> str:
        """Data type that the engine computes in, never "auto"."""
        if self.dtype != "auto":
            return self.dtype
        return "float32" if self.device.startswith("cpu") else "bfloat16"


class EvaluationConfig(_Table):
    """All settings of an evaluation. Example: `read_config(Path("configs/evaluations/gsm8k.toml"), {})`."""

    tasks: TaskChoice
    prompt: PromptChoice = PromptChoice()
    sampling: SamplingChoice = SamplingChoice()
    engine: EngineTable = EngineTable()
    grading: GradingParams = GradingParams()
    """Limits on grading one completion, as in a pool's parameters."""

    def choose_device(self) -> Self:
        """Return the settings with the device that is used, never "auto"."""
        device = find_device() if self.engine.device == "auto" else self.engine.device
        return self.model_copy(update={"engine": self.engine.model_copy(update={"device": device})})


def choose_config(tasks: str, changes: Mapping[str, Mapping[str, Any]]) -> EvaluationConfig:
    """Return the settings for `tasks`: a file of rows, an environment kind, a generator, or a TOML file.

    In `changes`, by table, values that are None are not given. Raises the errors of `read_config`.
    """
    given = {
        table: {name: value for name, value in values.items() if value is not None} for table, values in changes.items()
    }
    if tasks.endswith(".toml"):
        return read_config(Path(tasks), given)
    questions = given.setdefault("tasks", {})
    if Path(tasks).exists() or tasks.endswith(_ROW_ENDINGS):
        questions["file"] = tasks
    elif is_task_type(tasks):
        questions["kind"] = tasks
    else:  # a generator of reasoning-gym, or an unknown name, which that kind reports
        questions |= {"kind": "reasoning_gym", "options": {"name": tasks}}
    return read_config(None, given)


def read_config(file: Path | None, changes: Mapping[str, Mapping[str, Any]]) -> EvaluationConfig:
    """Read a file's tables, with some values replaced. Without a file, all values come from `changes`.

    Raises the errors of `read_toml`, OperatorError("bad_evaluation") if a value is wrong, and
    OperatorError("unsupported_sampling") if a setting would change how tokens are sampled.
    """
    tables: dict[str, Any] = {} if file is None else read_toml(file)
    for table, values in changes.items():
        current = tables.get(table, {})
        tables[table] = {**current, **values} if isinstance(current, dict) else current
    if isinstance(tables.get("sampling"), dict):
        tables["sampling"] = _require_supported(tables["sampling"])
    try:
        return EvaluationConfig.model_validate(tables)
    except ValidationError as error:
        place = f" in {file}" if file else ""
        message = f"invalid settings of the evaluation{place}: {explain(error, EvaluationConfig)}"
        raise OperatorError("bad_evaluation", message, fix="Correct the file or the options of covey eval") from error


def _require_supported(sampling: JsonObject) -> dict[str, JsonValue]:
    """Return the table without settings that have no effect. Raises OperatorError("unsupported_sampling")."""
    for name, neutral in UNSUPPORTED.items():
        if name in sampling and sampling[name] not in neutral:
            raise OperatorError(
                "unsupported_sampling",
                f"{name} is {sampling[name]}, but Covey samples from the whole distribution at a temperature, with "
                "nothing else",
                fix=f"Remove {name} from the table [sampling]",
            )
    return {name: value for name, value in sampling.items() if name not in UNSUPPORTED}
