"""Settings of the objective: advantages, clipping, correction for the policy that sampled, masks and regularisers.

`LossSettings` is the table `[loss]` of trainer.toml. Names are TRL's where TRL has the option. `PRESETS` has the values
of published objectives by versioned name. A preset never changes: other values get a new version.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

LossType = Literal["dapo", "grpo", "dr_grpo", "cispo", "policy_gradient"]
Normaliser = Literal["tokens", "sequence", "constant"]
Scale = Literal["group", "batch", "mean", "none"]
ImportanceMode = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "icepop"]
Mask = Literal["none", "ipo", "dppo", "kpop", "opsm", "geometric", "k3"]
KlEstimator = Literal["k3_corrected", "k3_ratio", "k3"]
OldPolicy = Literal["behaviour", "claimed", "recompute"]

REFERENCE = r"^([A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*|[A-Za-z_][\w-]*)$"
"""Form of the name of a function: "package.module:function", or an entry point such as "soft-clip"."""

_PLAIN: Mapping[str, object] = {"delta": None, "importance_sampling_mode": "none"}
"""Values shared by papers that clip the ratio to the policy that sampled, on one side for each sign."""
PRESETS: Mapping[str, Mapping[str, object]] = {
    "covey@1": {},
    "intellect-2@1": {
        "importance_sampling_mode": "none", "old_policy": "recompute", "delta": 4.0, "beta": 0.001,
        "kl_estimator": "k3", "entropy_coef": 1e-4,
    },
    "grpo@1": {**_PLAIN, "loss_type": "grpo", "beta": 0.04, "kl_estimator": "k3"},
    "dapo@1": {**_PLAIN, "epsilon_high": 0.28, "mask_truncated_completions": True},
    "dr-grpo@1": {**_PLAIN, "loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo@1": {
        **_PLAIN, "loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4,
    },
    "cispo@1": {**_PLAIN, "loss_type": "cispo", "epsilon_high": 5.0},
    "maxrl@1": {**_PLAIN, "scale_rewards": "mean"},
    "icepop@1": {
        **_PLAIN, "loss_type": "grpo", "importance_sampling_mode": "icepop", "importance_sampling_clip_min": 0.5,
        "importance_sampling_clip_max": 5.0,
    },
    "kpop@1": {**_PLAIN, "loss_type": "policy_gradient", "mask": "kpop", "mask_threshold": 0.1},
    "dppo@1": {
        **_PLAIN, "loss_type": "policy_gradient", "mask": "dppo", "mask_threshold": 0.2, "mask_threshold_low": 0.2,
        "scale_rewards": "none", "kl_tau": 1e-3,
    },
    "prime-rl@1": {
        **_PLAIN, "loss_type": "policy_gradient", "mask": "ipo", "mask_threshold": 0.1, "scale_rewards": "none",
        "kl_tau": 1e-3,
    },
    "trl@1": {
        "delta": None, "importance_sampling_mode": "sequence_mask", "importance_sampling_clip_max": 3.0,
        "scale_rewards_ddof": 1, "scale_rewards_epsilon": 1e-4, "kl_estimator": "k3_ratio",
    },
}  # fmt: skip
"""Settings of published objectives, by name and version. Everything that a preset does not name has its default."""


class LossSettings(BaseModel):
    """Objective of the trainer, for example LossSettings(preset="dapo@1", epsilon_high=0.3)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str | None = None
    """Published objective that sets the other values of this table, for example "dapo@1". Values that are set here
    override it. None: the defaults of this table, which are "covey@1".
    """

    scale_rewards: Scale = "group"
    """Divisor of a rollout's reward minus the mean of its group. group (GRPO): the standard deviation of the group;
    batch: that of the whole batch; mean (MaxRL): the mean of the group, for rewards of at least 0; none (Dr. GRPO): 1.
    """
    scale_rewards_ddof: Literal[0, 1] = 0
    """Number subtracted from the number of rewards in a variance. 0: population; 1 (TRL): sample."""
    scale_rewards_epsilon: float = Field(default=1e-6, gt=0)
    """Term added to a standard deviation, so that the divisor is not 0. TRL uses 1e-4."""
    custom_advantage: str | None = Field(default=None, pattern=REFERENCE)
    """Function that computes the advantages instead, as "package.module:function" or the name of an entry point of the
    group `covey.advantages`. None: `scale_rewards` applies.
    """

    loss_type: LossType = "dapo"
    """Loss of a token, and its weight. dapo: clipped ratio, one divided by the number of tokens in the update; grpo:
    clipped ratio, one divided by the number of samples times the completion's length; dr_grpo: clipped ratio, one
    divided by the number of samples times the pool's maximum completion length; cispo: log-probability times the
    truncated ratio, weights of dapo; policy_gradient (prime-rl): unclipped ratio, weights of dapo.
    """
    custom_loss: str | None = Field(default=None, pattern=REFERENCE)
    """Function that computes the loss of each token instead, as "package.module:function" or the name of an entry point
    of the group `covey.losses`. The weights remain those of `loss_type`. None: `loss_type` applies.
    """
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    """Distance below 1 to which probability ratios are clipped."""
    epsilon_high: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Distance above 1 to which probability ratios are clipped. With the loss type cispo, it is the maximum ratio
    itself. None: `epsilon`.
    """
    delta: float | None = Field(default=4.0, gt=1)
    """Upper bound of the probability ratio for tokens with a negative advantage (INTELLECT-2). It must exceed 1 +
    `epsilon_high`. None: no bound.
    """
    importance_sampling_level: Literal["token", "sequence"] = "token"
    """Level of the ratio that is clipped. token: each token's own; sequence (GSPO): the geometric mean of the
    completion's ratios.
    """

    importance_sampling_mode: ImportanceMode = "token_truncate"
    """Correction for the policy that sampled. none: the ratio that is clipped is the one to the policy that sampled.
    Otherwise it is the ratio to the policy at the start of the step (AReaL), times a weight pi_start / pi_sampler of
    the token or of the whole completion. truncate (TIS): the weight is limited to the bounds; mask (MIS): a weight
    outside the bounds becomes 0; icepop: token_mask with both bounds.
    """
    importance_sampling_clip_max: float = Field(default=5.0, ge=1, allow_inf_nan=False)
    """Upper bound of the weight of `importance_sampling_mode`."""
    importance_sampling_clip_min: float | None = Field(default=None, gt=0, le=1)
    """Lower bound of the weight of `importance_sampling_mode`. None: no lower bound. icepop requires it."""
    mask: Mask = "none"
    """Tokens without a policy gradient, by the difference between the policy that sampled and the policy in training.
    ipo (prime-rl): the probability differs by more than the threshold; dppo: it differs by more in the direction of the
    advantage; kpop: the binary KL divergence exceeds the threshold in either direction; opsm (DeepSeek-V3.2):
    completions with a negative advantage whose mean log-ratio exceeds it; geometric: completions whose geometric mean
    ratio exceeds it; k3: completions whose mean k3 estimate exceeds it.
    """
    mask_threshold: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Threshold of `mask`, which every mask requires. For geometric it is a ratio above 1."""
    mask_threshold_low: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Threshold of the other direction, for dppo a difference and for geometric a ratio below 1. None: the same
    distance as `mask_threshold`.
    """
    masked_tokens: Literal["published", "count", "drop"] = "published"
    """Whether tokens without a policy gradient count in the weights of the others. count: they do, and keep their
    regularisers; drop: they do not, and have no loss at all; published: drop for the masks kpop, geometric and k3,
    count otherwise.
    """
    mask_truncated_completions: bool = False
    """Whether completions that were cut at the token limit are excluded from the loss, so that the model does not
    learn that long reasoning is wrong. Their rewards still count in the advantages of their group (overlong
    filtering in DAPO).
    """

    old_policy: OldPolicy = "behaviour"
    """Source of the log-probabilities of the policy that sampled. behaviour: claims of replayed work, and recomputed
    values for all other work; claimed: the claims of all work, where a claim without a replay that differs from the
    trainer's value by more than any replayed one is replaced by it; recompute (INTELLECT-2): the current policy, so
    that staleness is not corrected.
    """
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the policy of step 0 in the loss. With 0 the divergence is not computed."""
    kl_estimator: KlEstimator = "k3_corrected"
    """Estimator of the KL divergence. k3_corrected: Schulman's k3 times the whole correction for the policy that
    sampled, whose gradient is that of the divergence from the policy to the reference; k3_ratio (TRL): times the ratio
    that is clipped; k3 (INTELLECT-2): without a factor, so that its gradient is that of the divergence from the
    reference to the policy.
    """
    kl_tau: float = Field(default=0.0, ge=0)
    """Weight of the squared log-ratio to the policy that sampled in the loss (Kimi K2.5, prime-rl)."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus in the loss."""

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        name = values.get("preset") if isinstance(values, dict) else None
        if name is None:
            return values
        if name not in PRESETS:
            raise ValueError(f"preset {name} is unknown; known are {', '.join(PRESETS)}")
        return {**PRESETS[name], **values}

    @model_validator(mode="after")
    def _require_consistent(self) -> Self:
        if self.loss_type == "cispo" and self.epsilon_high is None:
            raise ValueError("loss_type cispo requires epsilon_high, the maximum ratio")
        if self.delta is not None and self.loss_type != "cispo" and self.delta <= self.highest_ratio:
            raise ValueError("delta does not exceed 1 + epsilon_high")
        if self.importance_sampling_mode == "icepop" and self.importance_sampling_clip_min is None:
            raise ValueError("importance_sampling_mode icepop requires importance_sampling_clip_min")
        if self.mask != "none" and self.mask_threshold is None:
            raise ValueError(f"mask {self.mask} requires mask_threshold")
        if self.mask == "geometric" and not (self.mask_threshold or 0) > 1:
            raise ValueError("mask geometric requires a mask_threshold above 1")
        return self

    @property
    def normaliser(self) -> Normaliser:
        """Kind of the tokens' weights."""
        return {"grpo": "sequence", "dr_grpo": "constant"}.get(self.loss_type, "tokens")  # type: ignore[return-value]

    @property
    def highest_ratio(self) -> float:
        """Ratio above which tokens with a positive advantage are clipped."""
        if self.loss_type == "cispo" and self.epsilon_high is not None:
            return self.epsilon_high
        return 1 + (self.epsilon if self.epsilon_high is None else self.epsilon_high)

    @property
    def is_decoupled(self) -> bool:
        """Whether the ratio that is clipped is the one to the policy at the start of the step."""
        return self.importance_sampling_mode != "none"

    @property
    def drops_masked(self) -> bool:
        """Whether masked tokens leave the denominator."""
        if self.masked_tokens == "published":
            return self.mask in ("kpop", "geometric", "k3")
        return self.masked_tokens == "drop"

    @property
    def needs_all_samples(self) -> bool:
        """Whether samples of zero advantage affect the update, by a regulariser or by their share of the weights."""
        return max(self.beta, self.entropy_coef, self.kl_tau) > 0 or self.drops_masked or self.custom_loss is not None
