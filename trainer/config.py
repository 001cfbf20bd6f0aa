"""Settings of learning, in sections with the field's names, and those of a pool's trainer, for `covey trainer run`.

`LearningSettings` is what the learner, the evaluation and the metrics read. A pool's trainer and `covey train` share
it. The defaults suit models of 0.5 to 4 billion parameters. The paper's own, for 32 billion, are in
configs/intellect2.toml and configs/recipes/intellect2.toml.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.chain.fee_settings import FeeSettings
from covey.chain.finality import Finality
from covey.errors import OperatorError
from covey.runtime.settings import ProcessSettings, RoleSettings
from trainer.algorithm.loss_settings import LossSettings

Tracker = Literal["wandb", "mlflow", "trackio"]
"""Program that can receive metrics: its package, which is also the name of Covey's extra."""
MIN_SEQ_LEN, SEQ_LEN_MULTIPLE = 1024, 128
"""Minimum length of a row in tokens, and unit of its length, if it is chosen. Siblings in a row share their prompt."""
PASS_TOKENS = 8192
"""Number of tokens in one forward pass if the number of rows is chosen."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSection(_Section):
    """The model and how its forward passes are packed. Example: ModelSection(path="Qwen/Qwen3-0.6B", seq_len=2048)."""

    path: str | None = None
    """Folder or name of the model to train. A pool's trainer publishes it as the first policy. None: the tiny model
    shipped with Covey.
    """
    seq_len: int | None = Field(default=None, ge=2)
    """Number of tokens in a packed row. It must be at least the maximum prompt length plus the maximum completion
    length. Siblings that share a prompt are computed together up to this number of tokens. None: 1,024, or if the sum
    of the two lengths is larger, the sum rounded up to a multiple of 128.
    """
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Number of rows in one forward pass, which takes up to `seq_len` times as many tokens, without padding. Fewer
    rows need less memory. None: as many as have 8,192 tokens, but at least 1.
    """
    activation_checkpointing: bool = False
    """Whether activations are recomputed in the backward pass instead of stored. This saves memory and costs about a
    third more computation.
    """
    activation_offload: bool = False
    """Whether activations are kept in main memory between the forward and the backward pass. With
    `activation_checkpointing` only the inputs of layers are. It costs time, and main memory instead of the device's.
    """
    optimizer_offload: bool = False
    """Whether master weights and moments are kept in main memory and updated there. The device then holds 6 bytes per
    weight in bfloat16 instead of 18. It costs time, and the next step waits until a step is written.
    """
    compile: bool | None = None
    """Whether the layers of the model are compiled with torch.compile, which fuses what is between their matrix
    products. The first step then takes minutes. None: true on a CUDA device, and false on any other.
    """
    sync_each_batch: bool = False
    """Whether the ranks of a trainer under torchrun add up gradients after each micro-batch. With false they do so once
    per update. This is faster, but each device holds the whole gradient in float32, 4 bytes per trained weight.
    """

    def choose_seq_len(self, longest: int) -> int:
        """Return `seq_len`, or if it is None a length that suits samples of up to `longest` tokens.

        Raises OperatorError("short_rows") if a sample of `longest` tokens does not fit into a row.
        """
        if self.seq_len is None:
            return max(MIN_SEQ_LEN, SEQ_LEN_MULTIPLE * -(-longest // SEQ_LEN_MULTIPLE))
        if self.seq_len < longest:
            raise OperatorError(
                "short_rows",
                f"model.seq_len is {self.seq_len}, but a prompt with its completion can have {longest} tokens",
                fix=f"Set model.seq_len to {longest} or more, or remove it",
            )
        return self.seq_len

    def choose_micro_batch_size(self, longest: int) -> int:
        """Return `micro_batch_size`, or if it is None the number of rows of a forward pass with PASS_TOKENS tokens.

        Raises OperatorError("short_rows") if a sample of `longest` tokens does not fit into a row.
        """
        return self.micro_batch_size or max(1, PASS_TOKENS // self.choose_seq_len(longest))


class OptimSection(_Section):
    """The optimizer, AdamW, and its schedule. Example: OptimSection(learning_rate=5e-4, warmup_steps=0)."""

    learning_rate: float = Field(default=1e-6, gt=0, allow_inf_nan=False)
    """Learning rate after the warm-up. It is constant from then on."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of the two moments, each in [0, 1)."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Term added to the denominator for numerical stability."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    warmup_steps: int = Field(default=5, ge=0)
    """Number of updates over which the learning rate rises linearly. It is constant afterwards."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum gradient norm of one update. A larger gradient is scaled down to it."""
    updates_per_step: int = Field(default=1, ge=1, le=1024)
    """Number of optimizer updates into which the batch of one step is split."""

    @model_validator(mode="after")
    def _require_betas(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas contains a value outside [0, 1)")
        return self


class LoraSection(_Section):
    """LoRA adapters, trained instead of the full weights if `rank` is set. Example: LoraSection(rank=32, alpha=64)."""

    rank: int | None = Field(default=None, ge=1)
    """Rank of the adapters. It requires the extra `lora`. None: the full weights are trained."""
    alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    """Scaling factor of the adapters. It is divided by `rank`."""
    target_modules: tuple[str, ...] = ()
    """Linear layers that get adapters, given by the last component of their names. The head, embeddings and layers with
    tied weights are refused. Empty: all linear layers except the head.
    """


class EvalSection(_Section):
    """Evaluation on held-out questions during the run. The untrained model is evaluated first.

    Example: EvalSection(every=10, prompts=256).
    """

    every: int = Field(default=10, ge=0)
    """Number of steps from one evaluation to the next. The last step is always evaluated. 0 disables evaluations, for
    a device with too little memory.
    """
    prompts: int = Field(default=256, ge=1)
    """Maximum number of held-out questions in one evaluation."""
    samples: int = Field(default=1, ge=1)
    """Number of completions of one question."""
    max_batch: int = Field(default=128, ge=1)
    """Maximum number of completions that are generated together. If vLLM evaluates in `covey train`, its
    `sampling.max_batch` counts instead.
    """


class CkptSection(_Section):
    """Checkpoints, from which training resumes, and kept policies. Example: CkptSection(keep=3)."""

    every: int = Field(default=1, ge=1)
    """Number of steps from one checkpoint to the next. The last step always has one, and so has the step at which
    training is stopped. After a crash the steps since the newest checkpoint are learned again from batches on disk, and
    must give the same bits, as one thread of a CPU does. With a value above 1 a GPU therefore uses torch's
    deterministic kernels where it has them.
    """
    keep: int = Field(default=2, ge=1)
    """Number of checkpoints to keep, newest first. Older ones are deleted."""
    keep_policies_every: int = Field(default=0, ge=0)
    """Policies of steps that are a multiple of this number stay in `home`/exports. 0: only those that are needed."""


class LogSection(_Section):
    """Metrics and rollouts that are written for people. Example: LogSection(sinks=("wandb",), project="spelling")."""

    rollouts: int = Field(default=8, ge=0)
    """Number of completions of each step that are written to `home`/rollouts as text."""
    tensorboard: bool = False
    """Whether metrics are also written to `home`/tensorboard. It requires the extra `tensorboard`."""
    sinks: tuple[Tracker, ...] = ()
    """Programs that also receive the metrics: "wandb", "mlflow" or "trackio". Each requires the extra of its name."""
    project: str = "covey"
    """Project of the run in `sinks`, which MLflow calls an experiment."""
    run_name: str | None = None
    """Name of the run in `sinks`. None: the name of the folder `home`."""
    peak_flops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Peak floating-point operations per second of one device in the model's data type. None: utilisation is not
    reported.
    """


class AlarmSettings(_Section):
    """Limits of the alarms, for example AlarmSettings(window=20, gradient_norm_climb=3.0)."""

    window: int = Field(default=10, ge=1, le=1000)
    """Number of steps in each median that an alarm compares. Alarms start after two windows, the alarm for the
    entropy after three.
    """
    gradient_norm_climb: float = Field(default=2.0, gt=1)
    """Factor by which the median gradient norm must exceed its lowest earlier value to raise an alarm."""
    outside_clip_climb: float = Field(default=2.0, gt=1)
    """Factor by which the median share of tokens outside the clip range must exceed its lowest earlier value to
    raise an alarm.
    """
    outside_clip_least: float = Field(default=0.05, ge=0)
    """Minimum share of tokens outside the clip range for an alarm. Below it no alarm is raised, whatever the
    increase.
    """
    outside_clip_most: float = Field(default=0.5, gt=0, le=1)
    """Share of tokens outside the clip range that always raises an alarm, whatever the increase. It is needed
    because a share above one half can never double.
    """
    mismatch_kl_climb: float = Field(default=2.0, gt=1)
    """Factor by which the median mismatch KL must exceed its lowest earlier value to raise an alarm."""
    mismatch_kl_least: float = Field(default=0.01, ge=0)
    """Minimum mismatch KL for an alarm, in nats per token. Below it no alarm is raised, whatever the increase."""
    entropy_fall: float = Field(default=0.2, gt=0, lt=1)
    """Relative drop of the median entropy from its highest value, from 0 to 1, after which a rise raises an alarm."""
    entropy_rise: float = Field(default=0.2, gt=0)
    """Relative rise of the median entropy from its lowest value that raises an alarm after the drop `entropy_fall`."""
    steps: int = Field(default=5, ge=1, le=1000)
    """Number of newest steps over which the signs that a run cannot learn are averaged. Their alarms start after that
    number of steps.
    """
    truncated_most: float = Field(default=0.5, ge=0, le=1)
    """Mean share of completions cut at the token limit above which an alarm is raised."""
    unanswered_most: float = Field(default=0.5, ge=0, le=1)
    """Mean share of finished completions without an extractable answer above which an alarm is raised."""


class LearningSettings(ProcessSettings):
    """Settings of learning, which a pool's trainer and a run on one machine share."""

    renamed: ClassVar[Mapping[str, str]] = {
        "log.level": "log_level",
        "log.alarms": "alarms",
        **{f"log.alarms.{name}": f"alarms.{name}" for name in AlarmSettings.model_fields},
    }

    steps: int | None = Field(default=None, ge=0)
    """Step of the last policy to train. Training ends after this policy is evaluated and, in a pool, published. None:
    it trains until it is stopped.
    """
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed for sampling in evaluations and for new LoRA adapters. Training itself is deterministic."""
    stop_when_dead: int = Field(default=20, ge=0)
    """Number of consecutive dead steps after which a run ends and a pool's new tasks are paused, because the run cannot
    learn. A step is dead if no group was live or the gradient was exactly zero. The operator of a pool resumes with
    covey pool resume. 0: dead steps change nothing.
    """
    rank_seconds: float = Field(default=1800.0, ge=20)
    """Seconds without progress after which a rank under torchrun is treated as lost by the others. A rank whose
    process ends is noticed immediately.
    """
    model: ModelSection = ModelSection()
    loss: LossSettings = LossSettings()
    """Objective: advantages, loss, corrections for the policy that sampled, masks and regularisers."""
    optim: OptimSection = OptimSection()
    lora: LoraSection = LoraSection()
    eval: EvalSection = EvalSection()
    ckpt: CkptSection = CkptSection()
    log: LogSection = LogSection()
    alarms: AlarmSettings = AlarmSettings()
    """Thresholds of the alarms that report early signs of collapse, and signs that the run cannot learn."""


LEARNING: set[str] = set(LearningSettings.model_fields.keys() - ProcessSettings.model_fields.keys())
"""Names of the settings that decide what is learned. The others are places and capacities of one process."""


class TrainerConfig(LearningSettings, RoleSettings, FeeSettings):
    """Settings of a trainer, for example `TrainerConfig.load(Path("trainer.toml"))`."""

    renamed: ClassVar[Mapping[str, str]] = {
        **LearningSettings.renamed,
        "initial_policy": "model.path",
        "seq_len": "model.seq_len",
        "row_tokens": "model.seq_len",
        "micro_batch_size": "model.micro_batch_size",
        "micro_batch_rows": "model.micro_batch_size",
        "activation_checkpointing": "model.activation_checkpointing",
        "activation_offload": "model.activation_offload",
        "optimizer_offload": "model.optimizer_offload",
        "compile": "model.compile",
        "sync_each_batch": "model.sync_each_batch",
        "learning_rate": "optim.learning_rate",
        "betas": "optim.betas",
        "adam_epsilon": "optim.adam_epsilon",
        "weight_decay": "optim.weight_decay",
        "warmup_steps": "optim.warmup_steps",
        "warm_up_updates": "optim.warmup_steps",
        "max_grad_norm": "optim.max_grad_norm",
        "gradient_clip": "optim.max_grad_norm",
        "updates_per_step": "optim.updates_per_step",
        "lora_rank": "lora.rank",
        "lora_alpha": "lora.alpha",
        "lora_targets": "lora.target_modules",
        "evaluation_every": "eval.every",
        "evaluation_prompts": "eval.prompts",
        "evaluation_samples": "eval.samples",
        "evaluation_batch": "eval.max_batch",
        "keep_checkpoints": "ckpt.keep",
        "rollouts_per_step": "log.rollouts",
        "tensorboard": "log.tensorboard",
        "sinks": "log.sinks",
        "sink_project": "log.project",
        "sink_run_name": "log.run_name",
        "peak_flops": "log.peak_flops",
        "kl_coefficient": "loss.beta",
        "kl_coef": "loss.beta",
        "kl_estimator": "loss.kl_estimator",
        "entropy_coefficient": "loss.entropy_coef",
        "entropy_coef": "loss.entropy_coef",
        "advantage": "loss.scale_rewards",
        "normaliser": "loss.loss_type",
        "mask_truncated": "loss.mask_truncated_completions",
        "clip_epsilon": "loss.epsilon",
        "clip_delta": "loss.delta",
        "objective": "loss.importance_sampling_mode",
        "importance_cap": "loss.importance_sampling_clip_max",
        "old_policy": "loss.old_policy",
    }

    finality: Finality = "latest"
    """Tag of the blocks that the outbox treats as final: "latest", "safe" or "finalized". A transaction dropped by a
    reorganisation is sent again until its block has this tag and 128 blocks follow it.
    """
    origin_root: Path
    """Folder into which new policies are written, and from which `covey origin run` serves them."""
    initial_step: int = Field(default=0, ge=0)
    """Step at which `model.path` was published. Set it above 0 to continue a pool without a checkpoint."""
    keep_policies: int = Field(default=5, ge=1)
    """Minimum number of policies that the origin keeps, newest first. Older policies are kept as long as the pool's
    terms allow audits of work that used them.
    """
    anchor_every: int = Field(default=10, ge=1)
    """Number of steps from one anchor to the next. An anchor is a whole policy, and all others are offered as deltas.
    A worker that joins downloads the last anchor and one delta.
    """
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Maximum CPU seconds for decoding one rollout file. The wall-clock timeout is six times as long."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Maximum memory in bytes for decoding one rollout file."""
