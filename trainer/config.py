"""Settings of the trainer, for `covey trainer run`.  Defaults are the paper's (INTELLECT-2, section 4.1)."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from covey.settings import RoleSettings
from trainer.alarms import AlarmSettings


class TrainerConfig(RoleSettings):
    """Example: `TrainerConfig.load(Path("trainer.toml"))`."""

    origin_root: Path
    """Folder of the origin's ShardStore: policies are written here and served from here."""
    initial_policy: str | None = None
    """Folder or name of the model that step 0 publishes; None: the shipped tiny model."""
    initial_step: int = Field(default=0, ge=0)
    """The step that `initial_policy` was published at; above 0 where a pool goes on without a checkpoint."""
    steps: int | None = Field(default=None, ge=0)
    """Stop after publishing and evaluating the policy of this step; None: run on."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Of the evaluation's noise and of fresh adapters; learning itself draws nothing."""

    learning_rate: float = Field(default=3e-7, gt=0, allow_inf_nan=False)
    betas: tuple[float, float] = (0.9, 0.99)
    adam_epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    warm_up_updates: int = Field(default=25, ge=0)
    """Updates over which the learning rate rises linearly; constant afterwards."""
    gradient_clip: float = Field(default=0.1, gt=0)
    """Largest norm of the gradient of one update."""

    advantage: Literal["grpo", "dr_grpo"] = "grpo"
    normaliser: Literal["tokens", "sequence", "constant"] = "tokens"
    clip_epsilon: float = Field(default=0.2, gt=0, lt=1)
    clip_delta: float = Field(default=4.0, gt=1)
    """Upper bound of the ratio where the advantage is negative; above 1 + clip_epsilon."""
    objective: Literal["decoupled", "two_sided"] = "decoupled"
    """What is clipped: the ratio to the policy that the step starts from, and the loss is corrected for the one that
    sampled (AReaL); or the ratio to `old_policy` (the paper)."""
    importance_cap: float = Field(default=5.0, ge=1, allow_inf_nan=False)
    """Largest correction of a token by the decoupled objective."""
    old_policy: Literal["behaviour", "recompute"] = "behaviour"
    """Whose log-probabilities stand for the policy that sampled: its own, or those of the current one (the paper), with
    which staleness is not corrected and both objectives are the same."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Of the divergence from the policy of step 0."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    updates_per_step: int = Field(default=1, ge=1, le=1024)
    row_tokens: int = Field(default=1024, ge=2)
    """Length of a packed row; at least a whole prompt with its completion."""
    micro_batch_rows: int = Field(default=8, ge=1)
    """Packed rows of one forward pass."""
    activation_checkpointing: bool = False
    """Whether layers are computed again in the backward pass instead of kept: less memory, a third more computing."""

    lora_rank: int | None = Field(default=None, ge=1)
    """Of the adapters that learn in the place of the weights; wants the extra `lora`; None: the weights learn."""
    lora_alpha: float = Field(default=16.0, gt=0, allow_inf_nan=False)
    """An adapter counts this much divided by `lora_rank`."""
    lora_targets: tuple[str, ...] = ()
    """Last parts of the names of the linear layers that have adapters; none: all but the head."""

    rank_seconds: float = Field(default=1800.0, ge=20)
    """Under torchrun: how long a process may be silent until the others give it up; a dead one is seen at once."""

    keep_checkpoints: int = Field(default=2, ge=1)
    evaluation_prompts: int = Field(default=256, ge=1)
    evaluation_samples: int = Field(default=2, ge=1)
    evaluation_every: int = Field(default=1, ge=0)
    """Steps from one evaluation to the next, and the last one; 0: none, where the trainer's device has no room."""
    evaluation_batch: int = Field(default=128, ge=1)
    """Completions that the evaluation generates together."""
    alarms: AlarmSettings = AlarmSettings()
    """When an early sign of collapse is told."""
    tensorboard: bool = False
    """Whether metrics are written to `home`/tensorboard, too; wants the extra of this name."""
    peak_flops: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Floating-point operations that a device can do in a second in the model's number format; None: no utilisation
    is reported."""
    decoding_seconds: float = Field(default=10.0, gt=0)
    """Wall clock of decoding one file."""
    decoding_memory_bytes: int = Field(default=1 << 30, ge=1 << 26)

    @model_validator(mode="after")
    def _require_two_sides(self) -> Self:
        if self.clip_delta <= 1 + self.clip_epsilon:
            raise ValueError("clip_delta must be above 1 + clip_epsilon")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas must be in [0, 1)")
        return self
