"""Comparison of what a validator accepted with the honest work."""

from covey.protocol.submission_file.rows import Rollout
from tests.fakes.tools import Work
from validator.checks import CheckTools, SubmissionClaim

PLAIN = ("group", "sibling", "seed", "prompt", "tokens", "finished", "reward")


def require_same(claim: SubmissionClaim, honest: Work, tools: CheckTools) -> None:
    """Check that all fields are equal, proofs by their activations, and numbers within the pool's tolerance."""
    limits = tools.params.verification.thresholds
    found = sorted(claim.rollouts, key=lambda row: (row.group, row.sibling))
    for row, due in zip(found, honest.rollouts, strict=True):
        assert describe(row) == describe(due)
        assert max(abs(a - b) for a, b in zip(row.logprobs, due.logprobs, strict=True)) <= 2 * limits.logprob_max
    for each in claim.distances.values():
        assert {(w.sign_exponent_mismatches, w.mantissa_mean) for w in each.windows} == {(0, 0.0)}


def describe(row: Rollout) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in PLAIN)
