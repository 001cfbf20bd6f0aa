"""Settings of the trainer, for `covey trainer run`. Defaults are the paper's (INTELLECT-2, section 4.1)."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.chain.finality import Finality
from covey.errors import OperatorError
from covey.runtime.settings import RoleSettings


class AlarmSettings(BaseModel):
    """Limits of the alarms, for example AlarmSettings(window=20, gradient_norm_climb=3.0)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class TrainerConfig(RoleSettings):
    """Settings of a trainer, for example `TrainerConfig.load(Path("trainer.toml"))`."""

    renamed: ClassVar[Mapping[str, str]] = {
        "row_tokens": "seq_len",
        "micro_batch_rows": "micro_batch_size",
        "gradient_clip": "max_grad_norm",
        "warm_up_updates": "warmup_steps",
        "kl_coefficient": "kl_coef",
        "entropy_coefficient": "entropy_coef",
    }

    finality: Finality = "latest"
    """Tag of the blocks that the outbox treats as final: "latest", "safe" or "finalized". A transaction dropped by a
    reorganisation is sent again until its block has this tag and 128 blocks follow it.
    """
    origin_root: Path
    """Folder into which new policies are written, and from which `covey origin run` serves them."""
    initial_policy: str | None = None
    """Folder or name of the model that is published as the first policy. None: the tiny model shipped with Covey."""
    initial_step: int = Field(default=0, ge=0)
    """Step at which `initial_policy` was published. Set it above 0 to continue a pool without a checkpoint."""
    steps: int | None = Field(default=None, ge=0)
    """Step of the last policy to train. The trainer ends after this policy is published and evaluated. None: it
    trains until it is stopped.
    """
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed for sampling in evaluations and for new LoRA adapters. Training itself is deterministic."""

    learning_rate: float = Field(default=3e-7, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW after the warm-up. It is constant from then on."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of AdamW's two moments, each in [0, 1)."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Term that AdamW adds to the denominator for numerical stability."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of AdamW."""
    warmup_steps: int = Field(default=25, ge=0)
    """Number of updates over which the learning rate rises linearly. It is constant afterwards."""
    max_grad_norm: float = Field(default=0.1, gt=0)
    """Maximum gradient norm of one update. A larger gradient is scaled down to it."""

    advantage: Literal["grpo", "dr_grpo"] = "grpo"
    """Formula for the advantage of a rollout. grpo: its reward minus the mean of its group, divided by the group's
    standard deviation; dr_grpo: the same without the division.
    """
    normaliser: Literal["tokens", "sequence", "constant"] = "tokens"
    """Weight of a token in the loss. tokens: one divided by the number of tokens in the update; sequence: one
    divided by the number of samples times the length of the completion; constant: one divided by the number of
    samples times the pool's maximum completion length.
    """
    mask_truncated: bool = False
    """Whether completions that were cut at the token limit are excluded from the loss, so that the model does not
    learn that long reasoning is wrong. Their rewards still count in the advantages of their group (overlong
    filtering in DAPO).
    """
    clip_epsilon: float = Field(default=0.2, gt=0, lt=1)
    """Half width of the interval around 1 to which the probability ratio is clipped."""
    clip_delta: float = Field(default=4.0, gt=1)
    """Upper bound of the probability ratio for tokens with a negative advantage. It must exceed 1 + `clip_epsilon`."""
    objective: Literal["decoupled", "two_sided"] = "decoupled"
    """Objective, which determines the probability ratio that is clipped. decoupled (AReaL): the ratio to the policy
    at the start of the step, with a correction for the policy that sampled; two_sided (INTELLECT-2): the ratio to
    `old_policy`.
    """
    importance_cap: float = Field(default=5.0, ge=1, allow_inf_nan=False)
    """Maximum correction factor of a token in the decoupled objective, which bounds the variance."""
    old_policy: Literal["behaviour", "recompute"] = "behaviour"
    """Source of the log-probabilities of the policy that sampled. behaviour: the rollouts; recompute (INTELLECT-2):
    the current policy, so that staleness is not corrected and both objectives are the same.
    """
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the policy of step 0 in the loss. With 0 the divergence is not computed."""
    kl_estimator: Literal["k3_corrected", "k3"] = "k3_corrected"
    """Estimator of the KL divergence. k3_corrected: Schulman's k3 times the probability ratio to the policy that
    sampled, whose gradient is that of the divergence from the policy to the reference; k3 (INTELLECT-2): without
    that ratio, so that its gradient is that of the divergence from the reference to the policy.
    """
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""
    updates_per_step: int = Field(default=1, ge=1, le=1024)
    """Number of optimizer updates into which the batch of one step is split."""
    seq_len: int = Field(default=1024, ge=2)
    """Number of tokens in a packed row. It must be at least the pool's maximum prompt length plus its maximum
    completion length.
    """
    micro_batch_size: int = Field(default=8, ge=1)
    """Number of packed rows in one forward pass. Fewer rows need less memory."""
    activation_checkpointing: bool = False
    """Whether activations are recomputed in the backward pass instead of stored. This saves memory and costs about a
    third more computation.
    """

    lora_rank: int | None = Field(default=None, ge=1)
    """Rank of LoRA adapters to train instead of the full weights. It requires the extra `lora`. None: the full
    weights are trained.
    """
    lora_alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    """Scaling factor of the LoRA adapters. It is divided by `lora_rank`."""
    lora_targets: tuple[str, ...] = ()
    """Linear layers that get LoRA adapters, given by the last component of their names. The head, embeddings and
    layers with tied weights are refused. Empty: all linear layers except the head.
    """

    rank_seconds: float = Field(default=1800.0, ge=20)
    """Seconds without progress after which a rank under torchrun is treated as lost by the others. A rank whose
    process ends is noticed immediately.
    """

    keep_policies: int = Field(default=5, ge=1)
    """Minimum number of policies that the origin keeps, newest first. Older policies are kept as long as the pool's
    terms allow audits of work that used them.
    """
    anchor_every: int = Field(default=10, ge=1)
    """Number of steps from one anchor to the next. An anchor is a whole policy, and all others are offered as deltas.
    A worker that joins downloads the last anchor and one delta.
    """
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of checkpoints to keep, newest first. Older ones are deleted."""
    evaluation_prompts: int = Field(default=256, ge=1)
    """Number of held-out prompts in one evaluation."""
    evaluation_samples: int = Field(default=2, ge=1)
    """Number of completions per held-out prompt."""
    evaluation_every: int = Field(default=1, ge=0)
    """Number of steps from one evaluation to the next. The last step is always evaluated. 0 disables evaluations,
    for a device with too little memory.
    """
    evaluation_batch: int = Field(default=128, ge=1)
    """Maximum number of completions that the evaluation generates in one batch."""
    alarms: AlarmSettings = AlarmSettings()
    """Thresholds of the alarms that report early signs of collapse, and signs that the run cannot learn."""
    stop_when_dead: int = Field(default=20, ge=0)
    """Number of consecutive dead steps after which new tasks are paused, so that the escrow is not spent on a run that
    cannot learn. A step is dead if no group was live or the gradient was exactly zero. The operator resumes with
    covey pool resume. 0: tasks are never paused.
    """
    tensorboard: bool = False
    """Whether metrics are also written to `home`/tensorboard. It requires the extra `tensorboard`."""
    peak_flops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Peak floating-point operations per second of one device in the model's data type. None: utilisation is not
    reported.
    """
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Maximum CPU seconds for decoding one rollout file. The wall-clock timeout is six times as long."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Maximum memory in bytes for decoding one rollout file."""

    @model_validator(mode="after")
    def _require_two_sides(self) -> Self:
        if self.clip_delta <= 1 + self.clip_epsilon:
            raise ValueError("clip_delta does not exceed 1 + clip_epsilon")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas contains a value outside [0, 1)")
        return self

    def require_long_rows(self, longest: int) -> None:
        """Raise OperatorError("short_rows") if a sample of `longest` tokens does not fit into a row."""
        if self.seq_len < longest:
            raise OperatorError(
                "short_rows",
                f"seq_len is {self.seq_len}, but a prompt with its completion can have {longest} tokens",
                fix=f"Set seq_len to {longest} or more",
            )
