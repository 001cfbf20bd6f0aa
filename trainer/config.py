"""Settings of the trainer, for `covey trainer run`.  Defaults are the paper's (INTELLECT-2, section 4.1)."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.chain.finality import Finality
from covey.runtime.settings import RoleSettings


class AlarmSettings(BaseModel):
    """When a sign stands.  Example: AlarmSettings(window=20, gradient_norm_climb=3.0)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    window: int = Field(default=10, ge=1, le=1000)
    """Steps of one median. Alarms start after two windows, the alarm of the entropy after three."""
    gradient_norm_climb: float = Field(default=2.0, gt=1)
    """Ratio of the newest median of the gradient norm to its lowest earlier one that raises an alarm."""
    outside_clip_climb: float = Field(default=2.0, gt=1)
    """Ratio of the newest median of the share of tokens outside the clip range to its lowest earlier one that raises
    an alarm."""
    outside_clip_least: float = Field(default=0.05, ge=0)
    """Share of tokens outside the clip range below which no alarm is raised, however steeply it climbed."""
    outside_clip_most: float = Field(default=0.5, gt=0, le=1)
    """Share of tokens outside the clip range from which on an alarm is raised, however little it climbed: twice a share
    above one half would never come."""
    mismatch_kl_climb: float = Field(default=2.0, gt=1)
    """Ratio of the newest median of the mismatch KL to its lowest earlier one that raises an alarm."""
    mismatch_kl_least: float = Field(default=0.01, ge=0)
    """Mismatch KL in nats per token below which no alarm is raised, however steeply it climbed."""
    entropy_fall: float = Field(default=0.2, gt=0, lt=1)
    """Part of its highest median that the entropy must have lost before a rise of it raises an alarm."""
    entropy_rise: float = Field(default=0.2, gt=0)
    """Part of its lowest median that the entropy must have won back to raise an alarm."""


class TrainerConfig(RoleSettings):
    """Example: `TrainerConfig.load(Path("trainer.toml"))`."""

    renamed: ClassVar[Mapping[str, str]] = {
        "row_tokens": "seq_len",
        "micro_batch_rows": "micro_batch_size",
        "gradient_clip": "max_grad_norm",
        "warm_up_updates": "warmup_steps",
        "kl_coefficient": "kl_coef",
        "entropy_coefficient": "entropy_coef",
    }

    finality: Finality = "latest"
    """Tag of the blocks that the outbox takes for final: "latest", "safe" or "finalized". A transaction that a
    reorganisation drops is sent again until its block has this tag and 128 blocks follow it."""
    origin_root: Path
    """Folder that new policies are published into and that `covey origin run` serves."""
    initial_policy: str | None = None
    """Folder or name of the model that is published first. None: the shipped tiny model."""
    initial_step: int = Field(default=0, ge=0)
    """Step that `initial_policy` was published at. It is above 0 where a pool goes on without a checkpoint."""
    steps: int | None = Field(default=None, ge=0)
    """Step whose policy ends the run, after it is published and evaluated. None: the run has no end."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the evaluation's sampling and of new adapters. Learning itself is deterministic."""

    learning_rate: float = Field(default=3e-7, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW after the warm-up, from when on it is constant."""
    betas: tuple[float, float] = (0.9, 0.99)
    """Decay rates of AdamW's two moments, each in [0, 1)."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Term that AdamW adds to the denominator for numerical stability."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay of AdamW."""
    warmup_steps: int = Field(default=25, ge=0)
    """Updates over which the learning rate rises linearly. It is constant afterwards."""
    max_grad_norm: float = Field(default=0.1, gt=0)
    """Largest norm of the gradient of one update; a longer gradient is scaled down to it."""

    advantage: Literal["grpo", "dr_grpo"] = "grpo"
    """Advantage of a rollout. grpo: its reward minus the group's mean, over the group's standard deviation;
    dr_grpo: without the division."""
    normaliser: Literal["tokens", "sequence", "constant"] = "tokens"
    """Weight of a token in the loss. tokens: one over the tokens of the update; sequence: one over the samples and
    the completion's own length; constant: one over the samples and the pool's longest completion."""
    mask_truncated: bool = False
    """Whether completions that the limit of tokens cut bear no loss, so that a long thought is not taught to be wrong.
    Their rewards still count in the advantages of their group (DAPO, overlong filtering)."""
    clip_epsilon: float = Field(default=0.2, gt=0, lt=1)
    """Half width of the interval around 1 that probability ratios are clipped to."""
    clip_delta: float = Field(default=4.0, gt=1)
    """Upper bound of the probability ratio where the advantage is negative. It is above 1 + `clip_epsilon`."""
    objective: Literal["decoupled", "two_sided"] = "decoupled"
    """Ratio that is clipped. decoupled (AReaL): to the policy that the step starts from, and the loss is corrected
    for the policy that sampled; two_sided (the paper): to `old_policy`."""
    importance_cap: float = Field(default=5.0, ge=1, allow_inf_nan=False)
    """Largest correction of one token by the decoupled objective, which bounds its variance."""
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
    """Optimizer updates that the batch of one step is split into."""
    seq_len: int = Field(default=1024, ge=2)
    """Tokens of one packed row; at least the pool's longest prompt with its completion."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Packed rows of one forward pass. Fewer take less memory."""
    activation_checkpointing: bool = False
    """Whether activations are recomputed in the backward pass instead of kept: less memory, a third more
    computation."""

    lora_rank: int | None = Field(default=None, ge=1)
    """Rank of LoRA adapters, which learn instead of the weights; requires the extra `lora`. None: the weights
    learn."""
    lora_alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    """Scale of LoRA adapters, divided by `lora_rank`."""
    lora_targets: tuple[str, ...] = ()
    """Last parts of the names of the linear layers that get adapters. Empty: all linear layers but the head."""

    rank_seconds: float = Field(default=1800.0, ge=20)
    """Seconds under torchrun after which a silent process is given up by the others; a dead one is noticed at
    once."""

    keep_policies: int = Field(default=5, ge=1)
    """Number of newest policies that the origin keeps at least. Older ones are kept as long as the pool's terms let
    their work be audited."""
    keep_checkpoints: int = Field(default=2, ge=1)
    """Number of newest checkpoints that are kept; older ones are deleted."""
    evaluation_prompts: int = Field(default=256, ge=1)
    """Number of held-out prompts of one evaluation."""
    evaluation_samples: int = Field(default=2, ge=1)
    """Completions of each held-out prompt."""
    evaluation_every: int = Field(default=1, ge=0)
    """Steps from one evaluation to the next; the last step is always evaluated. 0: no evaluation, where the device
    has no room for it."""
    evaluation_batch: int = Field(default=128, ge=1)
    """Largest number of completions that the evaluation generates together."""
    alarms: AlarmSettings = AlarmSettings()
    """Limits of the alarms about early signs of collapse."""
    tensorboard: bool = False
    """Whether metrics are also written to `home`/tensorboard; requires the extra `tensorboard`."""
    peak_flops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Floating-point operations per second that one device can do in the model's number format. None: no
    utilisation is reported."""
    decoding_seconds: float = Field(default=10.0, gt=0)
    """CPU seconds that decoding one rollout file may take. The wall clock allows six times as many."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """Memory in bytes that decoding one rollout file may take."""

    @model_validator(mode="after")
    def _require_two_sides(self) -> Self:
        if self.clip_delta <= 1 + self.clip_epsilon:
            raise ValueError("clip_delta must be above 1 + clip_epsilon")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas must be in [0, 1)")
        return self
