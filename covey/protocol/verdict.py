"""Decision, reason and severity of a judgement. Their numbers are signed and on chain and must not change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from covey.protocol.running_sums import Sums


class Decision(IntEnum):
    """A validator's decision on a submission."""

    ACCEPT = 1
    REJECT = 2
    UNKNOWN = 3
    """The validator could not check the submission. Its verdict causes neither payment nor slashing."""


class Severity(IntEnum):
    """Consequence of a verdict. See `compute_severity`."""

    NONE = 0
    SOFT = 1
    """The submission is void, and the contributor gets a strike."""
    HARD = 2
    """A hard rejection opens a case: the stake is locked, and later slashed.

    A hard accept says that the validator has replayed all rows. It loses a part of its bond if a case about the work is
    executed.
    """


class Reason(IntEnum):
    """Reason for a rejection. Reasons 1 to 31 are hard, and reasons from 32 upwards are soft."""

    NONE = 0
    WRONG_POLICY_VERSION = 1
    WRONG_PROMPT = 2
    WRONG_SEED = 3
    TOKEN_MARGIN = 4
    PROOF = 5
    LOGPROB = 6
    FALSE_TERMINATION = 7
    REPLAYED_PROOF = 8
    EQUIVOCATION = 9
    MALFORMED = 32
    SCHEMA = 33
    LATE = 34
    OVERSIZED = 35
    MISSING = 36
    STALE = 37
    NOT_YOUR_TASK = 38
    REWARD = 39
    DUPLICATE = 40
    UNDECIDED = 41
    INEXACT = 42
    """In the exact lane the replay differs, but one fault of the worker's hardware may explain it."""
    CANARY = 43
    """The submission is a canary: the operator knows its correct verdict. It is void even if all verdicts accept it.

    Validators never give this reason.
    """

    @property
    def severity(self) -> Severity:
        """Consequence of a rejection for this reason."""
        if self is Reason.NONE:
            return Severity.NONE
        return Severity.HARD if self < 32 else Severity.SOFT

    @property
    def meaning(self) -> str:
        """Sentence that says what is wrong with the work. Empty for NONE."""
        return _MEANINGS.get(self, "")


_MEANINGS = {
    Reason.WRONG_POLICY_VERSION: "It was sampled from another policy than that of its task.",
    Reason.WRONG_PROMPT: "A prompt is not the one that the task draws.",
    Reason.WRONG_SEED: "A seed is not the one that the task draws.",
    Reason.TOKEN_MARGIN: "A token is not the one that the policy samples with the seed of the task.",
    Reason.PROOF: "The hidden states of the policy do not match the proof.",
    Reason.LOGPROB: "Log-probabilities differ from those of the policy by more than the limit.",
    Reason.FALSE_TERMINATION: "A completion ends where the policy does not end it.",
    Reason.REPLAYED_PROOF: "It contains a proof of other work.",
    Reason.EQUIVOCATION: "The node signed two different files for one lease.",
    Reason.MALFORMED: "The file, the receipt or a proof does not have the form of the protocol.",
    Reason.SCHEMA: "Columns or values of the file are not those of the protocol or of the lease.",
    Reason.LATE: "It was handed in after the deadline.",
    Reason.OVERSIZED: "The file is larger than a task allows.",
    Reason.MISSING: "The file lacks rollouts of the task.",
    Reason.STALE: "Its policy is too old for the batch that it would be trained in.",
    Reason.NOT_YOUR_TASK: "The receipt does not have the pool's number of groups per task.",
    Reason.REWARD: "A reward is not the one that the environment computes.",
    Reason.DUPLICATE: "The file has one rollout twice.",
    Reason.UNDECIDED: "Validators could not decide it in time. It is nobody's fault.",
    Reason.INEXACT: "It differs by what one fault of the hardware may explain.",
    Reason.CANARY: "It was a test of the validators by the operator. It is nobody's fault.",
}


HARD_REASONS = frozenset(reason for reason in Reason if reason.severity is Severity.HARD)
"""Reasons for a rejection that can cost the contributor its stake."""


def compute_severity(decision: Decision, reason: Reason, *, is_whole: bool) -> Severity:
    """Return the severity that a verdict must have. `is_whole` says whether its order was to replay all rows.

    An accept after a part of the rows may honestly be wrong about the others, so it is not hard.
    """
    return Severity.HARD if decision is Decision.ACCEPT and is_whole else reason.severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Content of a verdict before it is signed. Example: Judgement.reject(Reason.PROOF, window=3, exponent=40)."""

    decision: Decision
    reason: Reason = Reason.NONE
    units: int = 0
    """Work units: the number of completion tokens in accepted rollouts."""
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    """Short form of the evidence: row, window and statistics."""
    sums: Sums = field(default_factory=dict)
    """Sums of the distances of the replayed rows. Empty if nothing was replayed, if it differed too much, or in the
    exact lane.
    """

    @classmethod
    def accept(cls, units: int, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.ACCEPT, units=units, details=details)

    @classmethod
    def reject(cls, reason: Reason, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.REJECT, reason=reason, details=details)

    @classmethod
    def unknown(cls, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.UNKNOWN, details=details)
