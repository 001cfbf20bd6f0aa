"""The data that the trainer learns from: accepted work, its rollouts as samples, and the batch of one update."""

from dataclasses import dataclass

from covey.protocol.ids import RolloutId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedWork:
    """One accepted submission of a step."""

    task: TaskId
    policy_version: Step
    replayed: bool
    """Whether the claimed log-probabilities are the policy's and a replay confirmed them."""
    rollouts: tuple[Rollout, ...]
    regraded: int = 0
    """Number of rollouts whose claimed reward the trainer replaced by the one that it computed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One rollout as the learner needs it."""

    id: RolloutId
    policy_version: Step
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    reward: float
    advantage: float
    old: tuple[float, ...] | None
    """log p of each completion token under the old policy, see the setting `old_policy`. None: the learner computes it
    under the policy with which the step starts."""
    proximal: tuple[float, ...] | None = None
    """log p of each completion token under the policy with which the step starts. None if the update starts from that
    policy itself, or if the objective does not use it."""
    reference: tuple[float, ...] | None = None
    """log p of each completion token under the reference policy. None: no divergence is computed."""
    finished: bool = True
    """Whether the completion ended with an end token. Otherwise it was cut at the token limit."""

    @property
    def fed(self) -> int:
        """Number of tokens fed to the model: all but the last one, which predicts nothing."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The samples of one update, complete on every rank.

    Samples of zero advantage may be missing. Their tokens still count in `weights`.
    """

    samples: tuple[Sample, ...]
    weights: tuple[float, ...]
    """Weight of each token of a sample in the loss of the whole update, one per sample."""
    tokens: int
    """Number of loss-bearing tokens of the update, including those of missing samples."""
