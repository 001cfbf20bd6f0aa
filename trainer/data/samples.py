"""The data for learning: accepted work, its rollouts as samples, and the batch of one update."""

from dataclasses import dataclass

from covey.protocol.ids import RolloutId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedWork:
    """One accepted submission of a step."""

    task: TaskId
    policy_version: Step
    replayed: bool
    """Whether a replay confirmed that the claimed log-probabilities are the policy's."""
    rollouts: tuple[Rollout, ...]
    regraded: int = 0
    """Number of rollouts whose claimed reward the trainer replaced by its own."""
    looked_up: int = 0
    """Number of finished completions in which the trainer has looked for an answer."""
    unanswered: int = 0
    """Number of these that contain no extractable answer."""
    task_types: tuple[str, ...] = ()
    """Type of the task of each group (`covey.environments.mixture.name_task_types`). Empty in `covey train`."""


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
    """log p of each completion token under the policy that sampled; see the setting `loss.old_policy`. None means that
    the learner computes it under the policy at the start of the step.
    """
    proximal: tuple[float, ...] | None = None
    """log p of each completion token under the policy at the start of the step. None if the update starts from that
    policy, or if the objective does not use it.
    """
    reference: tuple[float, ...] | None = None
    """log p of each completion token under the reference policy. None if no KL divergence is computed."""
    audited: bool = False
    """Whether a replay confirmed the log-probabilities in `old`."""
    finished: bool = True
    """Whether the completion ended with an end token. Otherwise it was cut at the token limit."""

    @property
    def fed(self) -> int:
        """Number of tokens fed to the model: all except the last one, which predicts nothing."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The samples of one update, complete on every rank.

    Samples of zero advantage may be missing. Their tokens still count in `weights`.
    """

    samples: tuple[Sample, ...]
    weights: tuple[float, ...]
    """Weight of a sample's tokens in the loss of the whole update, one value per sample."""
    tokens: int
    """Number of tokens with a loss in the update, including those of missing samples."""
