"""Settings of the trainer, for `covey trainer run`. Defaults are the paper's (INTELLECT-2, section 4.1)."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.chain.finality import Finality
from covey.runtime.settings import RoleSettings


class AlarmSettings(BaseModel):
    """Limits of the alarms, for example AlarmSettings(window=20, gradient_norm_climb=3.0)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window: int = Field(default=10, ge=1, le=1000)
    """Number of steps in one median. Alarms start after two windows, the alarm of the entropy after three."""
    gradient_norm_climb: float = Field(default=2.0, gt=1)
    """Ratio of the newest median of the gradient norm to its lowest earlier one that raises an alarm."""
    outside_clip_climb: float = Field(default=2.0, gt=1)
    """Ratio of the newest median of the share of tokens outside the clip range to its lowest earlier one that raises
    an alarm."""
    outside_clip_least: float = Field(default=0.05, ge=0)
    """Share of tokens outside the clip range below which no alarm is raised, however steeply it climbed."""
    outside_clip_most: float = Field(default=0.5, gt=0, le=1)
    """Share of tokens outside the clip range from which an alarm is always raised, however little it climbed. A share
    above one half can never double."""
    mismatch_kl_climb: float = Field(default=2.0, gt=1)
    """Ratio of the newest median of the mismatch KL to its lowest earlier one that raises an alarm."""
    mismatch_kl_least: float = Field(default=0.01, ge=0)
    """Mismatch KL in nats per token below which no alarm is raised, however steeply it climbed."""
    entropy_fall: float = Field(default=0.2, gt=0, lt=1)
    """Share of its highest median that the entropy must have lost before its rise raises an alarm."""
    entropy_rise: float = Field(default=0.2, gt=0)
    """Share of its lowest median by which the entropy must rise again to raise an alarm."""


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
    """Tag of the blocks that the outbox treats as final: "latest", "safe" or "finalized". A transaction that a
    reorganisation drops is sent again until its block has this tag and 128 blocks follow it."""
    origin_root: Path
    """Folder into which new policies are published and which `covey origin run` serves."""
    initial_policy: str | None = None
    """Folder or name of the model that is published first. None: the shipped tiny model."""
    initial_step: int = Field(default=0, ge=0)
    """Step at which `initial_policy` was published. It is above 0 if a pool continues without a checkpoint."""
    steps: int | None = Field(default=None, ge=0)
    """Step whose policy ends the run after it is published and evaluated. None: the run has no end."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the evaluation's sampling and of new adapters. Learning itself is deterministic."""

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
    """Advantage of a rollout. grpo: its reward minus the group's mean, divided by the group's standard deviation;
    dr_grpo: without the division."""
    normaliser: Literal["tokens", "sequence", "constant"] = "tokens"
    """Weight of a token in the loss. tokens: one over the tokens of the update; sequence: one over the samples and
    the completion's own length; constant: one over the samples and the pool's longest completion."""
    mask_truncated: bool = False
    """Whether completions that were cut at the token limit bear no loss, so that a long thought is not taught to be
    wrong. Their rewards still count in the advantages of their group (DAPO, overlong filtering)."""
    clip_epsilon: float = Field(default=0.2, gt=0, lt=1)
    """Half width of the interval around 1 to which probability ratios are clipped."""
    clip_delta: float = Field(default=4.0, gt=1)
    """Upper bound of the probability ratio if the advantage is negative. It must be above 1 + `clip_epsilon`."""
    objective: Literal["decoupled", "two_sided"] = "decoupled"
    """Probability ratio that is clipped. decoupled (AReaL): the ratio to the policy with which the step starts, and the
    loss is corrected for the policy that sampled; two_sided (the paper): the ratio to `old_policy`."""
    importance_cap: float = Field(default=5.0, ge=1, allow_inf_nan=False)
    """Maximum correction of one token in the decoupled objective. It bounds the variance."""
    old_policy: Literal["behaviour", "recompute"] = "behaviour"
    """Log-probabilities of the policy that sampled. behaviour: those of the rollouts; recompute (the paper): those
    of the current policy, which corrects no staleness and makes both objectives the same."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the policy of step 0. 0: the divergence is not computed."""
    kl_estimator: Literal["k3_corrected", "k3"] = "k3_corrected"
    """Estimator of the KL divergence. k3_corrected: Schulman's k3 times the probability ratio to the policy that
    sampled, whose gradient is that of the divergence from the policy to the reference; k3 (the paper): without the
    ratio, which has the gradient of the divergence from the reference to the policy."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus."""
    updates_per_step: int = Field(default=1, ge=1, le=1024)
    """Number of optimizer updates into which the batch of one step is split."""
    seq_len: int = Field(default=1024, ge=2)
    """Number of tokens in a packed row: at least the pool's longest prompt plus its longest completion."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Number of packed rows in one forward pass. Fewer rows take less memory."""
    activation_checkpointing: bool = False
    """Whether activations are recomputed in the backward pass instead of kept. This saves memory and costs a third more
    computation."""

    lora_rank: int | None = Field(default=None, ge=1)
    """Rank of LoRA adapters, which are trained instead of the weights. It requires the extra `lora`. None: the weights
    are trained."""
    lora_alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    """Scale of LoRA adapters, divided by `lora_rank`."""
    lora_targets: tuple[str, ...] = ()
    """Last parts of the names of the linear layers that get adapters. Empty: all linear layers except the head."""

    rank_seconds: float = Field(default=1800.0, ge=20)
    """Seconds after which, under torchrun, the other processes treat a silent one as lost. A dead one is noticed at
    once."""

    keep_policies: int = Field(default=5, ge=1)
    """Minimum number of newest policies that the origin keeps. Older ones are kept as long as the pool's terms allow
    audits of their work."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of newest checkpoints that are kept. Older ones are deleted."""
    evaluation_prompts: int = Field(default=256, ge=1)
    """Number of held-out prompts in one evaluation."""
    evaluation_samples: int = Field(default=2, ge=1)
    """Number of completions of each held-out prompt."""
    evaluation_every: int = Field(default=1, ge=0)
    """Number of steps from one evaluation to the next. The last step is always evaluated. 0: no evaluation, for a
    device without enough memory."""
    evaluation_batch: int = Field(default=128, ge=1)
    """Maximum number of completions that the evaluation generates together."""
    alarms: AlarmSettings = AlarmSettings()
    """Limits of the alarms about early signs of collapse."""
    tensorboard: bool = False
    """Whether metrics are also written to `home`/tensorboard; requires the extra `tensorboard`."""
    peak_flops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Peak floating-point operations per second of one device in the model's number format. None: utilisation is not
    reported."""
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Maximum CPU seconds for decoding one rollout file. The wall-clock timeout is six times as long."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Maximum memory in bytes for decoding one rollout file."""

    @model_validator(mode="after")
    def _require_two_sides(self) -> Self:
        if self.clip_delta <= 1 + self.clip_epsilon:
            raise ValueError("clip_delta must be above 1 + clip_epsilon")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas must be in [0, 1)")
        return self
