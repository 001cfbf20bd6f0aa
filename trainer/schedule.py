"""When a step may begin, when training is done, which policies are evaluated, and how long the origin keeps them."""

from covey.chain.structs import PoolTerms
from covey.protocol.ids import Step
from covey.protocol.params import PoolParams
from covey.shardcast.store import Retention


def is_ahead(step: Step, unpublished: Step, *, max_staleness: int) -> bool:
    """Whether the policy of `step` can have no batch yet: all that is fresh enough for it is of policies from
    `unpublished` on."""
    return unpublished < max(1, step - max_staleness + 1)


def is_finished(step: Step, steps: int | None) -> bool:
    """Whether the policy of `step` is the last one wanted."""
    return steps is not None and step >= steps


def is_evaluated(step: Step, *, steps: int | None, every: int) -> bool:
    """Whether the policy of `step` is to be evaluated."""
    return every > 0 and (step % every == 0 or is_finished(step, steps))


def build_retention(keep: int, terms: PoolTerms, params: PoolParams) -> Retention:
    """Which policies stay in the origin: `keep` of them at least, and all whose work may still be challenged or audited
    (docs/decisions/028-how-long-a-policy-is-kept.md)."""
    # Work of a policy is refused once one that is max_staleness + 1 newer is on chain; the next is stored after that.
    lifetime = params.max_staleness + 2
    judging = params.max_judgements * params.judgement_seconds
    epoch = max(params.epoch_seconds, terms.epoch_length)
    seconds = judging + epoch + terms.challenge_window + terms.veto_window
    return Retention(keep=max(keep, lifetime), seconds=seconds, lifetime=lifetime)
