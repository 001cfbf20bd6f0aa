"""What the trainer learns from: accepted work, its rollouts as samples, and the batch of one update."""

from dataclasses import dataclass

from covey.protocol.ids import RolloutId, Step, TaskId
from covey.protocol.submission_file.rows import Rollout


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptedWork:
    """One accepted submission of a step."""

    task: TaskId
    policy_version: Step
    replayed: bool
    """Whether the claimed log-probabilities are the policy's, and a replay confirmed them."""
    rollouts: tuple[Rollout, ...]
    regraded: int = 0
    """Rollouts whose claimed reward was not the one that the trainer computed and put in its place."""


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
    """log p(token) under the old policy; None: to be recomputed, by the learner under the policy it starts from."""
    proximal: tuple[float, ...] | None = None
    """log p(token) under the policy that the step starts from, where updates have moved away from it."""
    reference: tuple[float, ...] | None = None
    """log p(token) under the reference, where a divergence is wanted."""
    finished: bool = True
    """Whether the completion ended by itself.  Otherwise the limit of tokens cut it."""

    @property
    def fed(self) -> int:
        """Tokens that go into the model: all but the last, which predicts nothing."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one update consumes, whole on every rank.  Samples of zero advantage may be missing; their tokens still
    count in `weights`."""

    samples: tuple[Sample, ...]
    weights: tuple[float, ...]
    """Of each token of a sample, in the loss of the whole update."""
    tokens: int
    """Loss-bearing tokens of the update, missing samples included."""
