"""Settings of a run on one machine, for `covey train FILE.toml`. It shares those of learning with a pool's trainer."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from covey.engines.vllm.vllm_options import VllmOptions
from covey.protocol.ids import Address
from covey.protocol.params import GradingParams
from trainer.config import EvalSection, LearningSettings, ModelSection


class TrainModelSection(ModelSection):
    """The model of a run, which no pool gives its number format."""

    dtype: Literal["float32", "bfloat16"] | None = None
    """Number format in which generator and learner compute. None: bfloat16 on a GPU, and float32 on a CPU."""


class TrainEvalSection(EvalSection):
    """Evaluation of a run, which can have a second score."""

    lenient_extraction: str | None = None
    """Extraction of a second score, `lenient_reward`, for example "final_number" where training requires a box. None:
    there is no second score. Mixtures and reward functions have none.
    """


class DataSection(BaseModel):
    """The questions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: str | None = None
    """Kind of environment, for example "math", "reasoning_gym:chain_sum" or "mixture". None: the only task type of
    `dataset`, or the arithmetic of the demo without a data set.
    """
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of the environment, as its kind defines them."""
    dataset: Path | None = None
    """File or folder with rows as `covey tasks import` reads them, or a data set that it has written. With `reward`,
    rows with a "prompt" and whatever else the function needs.
    """
    reward: Path | None = None
    """Python file and function that grades, for example "reward.py:score" for `score(completion, row)`. It replaces
    `environment`.
    """
    reward_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """Maximum time in seconds of one call of the reward function. A slower call ends the run."""


class SamplingSection(BaseModel):
    """Generation of rollouts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Literal["auto", "hf", "vllm"] = "auto"
    """Engine that generates. "auto": vllm on a GPU if it is installed, and hf otherwise."""
    device: str | None = None
    """Device that generates and evaluates, for example "cuda:1". None: the learner's."""
    temperature: float = Field(default=1.0, ge=0.01, le=10, allow_inf_nan=False)
    """Sampling temperature."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a prompt. None: chosen by the questions."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Maximum number of tokens of a completion. None: chosen by the model's context."""
    prompt_format: Literal["raw", "chat"] | None = None
    """How a prompt is formatted. None: chat if the model's answers end as its chat template ends a turn."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the chat template, for example {"enable_thinking": false}."""
    group_size: int = Field(default=8, ge=2, le=1024)
    """Number of completions of one question."""
    groups_per_step: int = Field(default=16, ge=1)
    """Number of questions of one step."""
    online_filter: bool = False
    """Whether a step samples until `groups_per_step` groups have rewards that differ (INTELLECT-2, section 3.3.2)."""
    max_sampling: float = Field(default=4.0, ge=1, le=64)
    """Maximum number of questions of one step with the online filter, as a multiple of `groups_per_step`."""
    max_staleness: int = Field(default=0, ge=0, le=64)
    """Number of steps by which the sampling policy is older than the trained one. 0: generator and learner take turns.
    1 or more: the next batch is generated while the learner computes, which needs memory for both.
    """
    max_batch: int = Field(default=256, ge=1)
    """Maximum number of completions that the engine generates together."""
    vllm: VllmOptions = VllmOptions()
    """Options of the engine vllm."""
    pool: int = Field(default=1, ge=1)
    """Number of the pool whose draws of questions and seeds this run repeats."""
    groups_per_task: int = Field(default=1, ge=1, le=1024)
    """Number of questions whose draws follow from one task number, as in a pool."""
    node: Address | None = None
    """Address of the node whose draws this run repeats. None: an address that follows from `seed`."""


class TrainConfig(LearningSettings):
    """Settings of a run on one machine. Example: `TrainConfig.load(Path("run.toml"), {"steps": 20})`."""

    home: Path = Path("run")
    """Folder of the run: checkpoints, policies, metrics and rollouts. A run resumes if its folder exists."""
    steps: int = Field(default=100, ge=1)
    """Number of steps to train."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of questions, sampling, evaluations and new adapters."""
    device: str = "auto"
    """Device, as torch calls it, for example "cuda:0". "auto": a GPU if torch finds one, and the CPU otherwise."""
    model: TrainModelSection = TrainModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    eval: TrainEvalSection = TrainEvalSection()
    grading: GradingParams = GradingParams()
    """Limits on grading one completion."""
