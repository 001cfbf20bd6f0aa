"""Decision, reason and severity of a judgement. The numbers are signed and on chain, so they never change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Decision(IntEnum):
    """A validator's decision on a submission."""

    ACCEPT = 1
    REJECT = 2
    UNKNOWN = 3
    """The validator could not check the submission. This neither pays nor slashes."""


class Severity(IntEnum):
    """Consequence of a rejection."""

    NONE = 0
    SOFT = 1
    """The submission is void, and the contributor gets a strike."""
    HARD = 2
    """A case is opened. Stake is locked, then slashed."""


class Reason(IntEnum):
    """Reason of a rejection. Reasons 1 to 31 are hard, and reasons from 32 are soft."""

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
    """In a pool of the exact mode, the replay is not bitwise equal, but the difference is within the thresholds."""
    CANARY = 43
    """The submission is the operator's own work with a known verdict. It is void whatever its verdicts are. Validators
    never give this reason."""

    @property
    def severity(self) -> Severity:
        """Consequence of a rejection for this reason."""
        if self is Reason.NONE:
            return Severity.NONE
        return Severity.HARD if self < 32 else Severity.SOFT


HARD_REASONS = frozenset(reason for reason in Reason if reason.severity is Severity.HARD)
"""Reasons of rejections that cost stake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The unsigned content of a verdict. Example: Judgement.reject(Reason.PROOF, window=3, exponent=40)."""

    decision: Decision
    reason: Reason = Reason.NONE
    units: int = 0
    """Number of completion tokens of the accepted rollouts."""
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    """Row, window and statistics, as a short form of the evidence."""

    @classmethod
    def accept(cls, units: int, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.ACCEPT, units=units, details=details)

    @classmethod
    def reject(cls, reason: Reason, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.REJECT, reason=reason, details=details)

    @classmethod
    def unknown(cls, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.UNKNOWN, details=details)
