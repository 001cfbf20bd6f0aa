"""Rules about when a step may begin, when training ends, and which policies are evaluated or kept in the origin."""

from covey.chain.structs import PoolTerms
from covey.protocol.ids import Step
from covey.protocol.params import PoolParams
from covey.shardcast.reachability import PolicyRetention


def is_ahead(step: Step, unpublished: Step, *, max_staleness: int) -> bool:
    """Return whether it is too early for a batch of the policy of `step`.

    It is too early if every policy whose work is fresh enough for it is unpublished, that is, at or after
    `unpublished`.
    """
    return unpublished < max(1, step - max_staleness + 1)


def is_finished(step: Step, steps: int | None) -> bool:
    """Return whether the policy of `step` is the last one of the run. `steps` is None if the run has no end."""
    return steps is not None and step >= steps


def is_evaluated(step: Step, *, steps: int | None, every: int) -> bool:
    """Return whether the policy of `step` is to be evaluated."""
    return every > 0 and (step % every == 0 or is_finished(step, steps))


def is_kept_again(
    version: Step, newest: Step, *, max_staleness: int, steps: int | None, keep_every: int, eval_every: int
) -> bool:
    """Return whether a policy that a restart learns again stays, if learning goes on from `newest`.

    It stays if batches may need it, if the settings keep it (`keep_every`), or if it is to be evaluated.
    """
    is_recent, is_chosen = newest - version <= max_staleness, keep_every > 0 and version % keep_every == 0
    return is_recent or is_chosen or is_evaluated(version, steps=steps, every=eval_every)


def build_retention(keep: int, terms: PoolTerms, params: PoolParams) -> PolicyRetention:
    """Return a rule for the policies that stay in the origin: at least `keep`, and all whose work can still be
    challenged or audited (docs/decisions/028-how-long-a-policy-is-kept.md).
    """
    # A policy's work is refused once a policy that is max_staleness + 1 newer is on chain. The next policy, which is
    # max_staleness + 2 newer, is stored after that, so the time at which it was stored bounds the last use.
    lifetime = params.max_staleness + 2
    judging = params.max_judgements * params.judgement_seconds
    epoch = max(params.epoch_seconds, terms.epoch_length)
    seconds = judging + epoch + terms.challenge_window + terms.veto_window
    return PolicyRetention(keep=max(keep, lifetime), seconds=seconds, lifetime=lifetime)
