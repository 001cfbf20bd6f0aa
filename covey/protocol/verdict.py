"""Outcome, reason and severity of a judgement.  The numbers are signed and on chain: they never change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum


class Decision(IntEnum):
    """What a validator says of a submission."""

    ACCEPT = 1
    REJECT = 2
    UNKNOWN = 3
    """Could not check: neither pays nor slashes."""


class Severity(IntEnum):
    """What a rejection costs."""

    NONE = 0
    SOFT = 1
    """Void and a strike."""
    HARD = 2
    """A case: stake is locked, then slashed."""


class Reason(IntEnum):
    """Why; 1 to 31 are hard, 32 and up are soft."""

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
    """In a pool of the exact mode: not bit for bit, and yet as close as calibrated work."""
    CANARY = 43
    """The operator's own work with a known verdict: void whatever the validators said.  No validator gives it."""

    @property
    def severity(self) -> Severity:
        if self is Reason.NONE:
            return Severity.NONE
        return Severity.HARD if self < 32 else Severity.SOFT


HARD_REASONS = frozenset(reason for reason in Reason if reason.severity is Severity.HARD)
"""Reasons of rejections that cost stake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The unsigned content of a verdict.  Example: Judgement.reject(Reason.PROOF, {"window": 3, "exponent": 40})."""

    decision: Decision
    reason: Reason = Reason.NONE
    units: int = 0
    """Completion tokens of the accepted rollouts."""
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    """Row, window and statistics: the evidence in short."""

    @classmethod
    def accept(cls, units: int, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.ACCEPT, units=units, details=details)

    @classmethod
    def reject(cls, reason: Reason, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.REJECT, reason=reason, details=details)

    @classmethod
    def unknown(cls, **details: float | int | str) -> "Judgement":
        return cls(decision=Decision.UNKNOWN, details=details)
