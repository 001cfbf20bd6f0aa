"""Which verdicts of an epoch are paid, and how much: a pool's fee for each, up to its limit for an epoch.

A verdict is paid if it is revealed and agrees with the decision of its submission. A validator is paid at most once for
a submission. Submissions are taken in the order of the epoch's leaves, and their validators in the order of addresses,
until the limit is reached.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from covey.protocol.ids import Address
from covey.protocol.verdict import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFees:
    """A pool's terms of payment for verdicts. Example: `VerdictFees(fee=5, limit=1000)`."""

    fee: int = 0
    """Fee for one verdict, in the token's smallest unit. If it is 0, epochs count no verdicts."""
    limit: int = 0
    """Maximum number of verdicts that one epoch pays."""

    def compute_total(self, verdicts: int) -> int:
        """Return the fees of some verdicts, in the token's smallest unit."""
        return self.fee * verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedWork:
    """Decision of one submission, and its revealed verdicts."""

    decision: int
    """Value of the `Decision`, the same as `outcome` in the leaf."""
    verdicts: Iterable[tuple[Address, int]]
    """Validators, each with the outcome of one verdict. A validator may have given two verdicts."""


def count_paid_verdicts(works: Iterable[JudgedWork], fees: VerdictFees) -> dict[Address, int]:
    """Return the number of paid verdicts of each validator. `works` are in the order of the epoch's leaves."""
    counts: Counter[Address] = Counter()
    left = fees.limit if fees.fee else 0
    for work in works:
        if work.decision == Decision.UNKNOWN:
            continue
        agreeing = {validator for validator, outcome in work.verdicts if outcome == work.decision}
        paid = sorted(agreeing, key=str.lower)[:left]
        counts.update(paid)
        left -= len(paid)
    return dict(sorted(counts.items()))


def find_false_count(
    counts: Mapping[Address, int],
    outcomes: Iterable[int],
    fees: VerdictFees,
    *,
    validators: Iterable[Address],
) -> str:
    """Return what is wrong with the counts of an epoch, for everybody who cannot see its verdicts. Empty if nothing is.

    `outcomes` are those of the leaves. `validators` are all that the pool has ever named.
    """
    total, known = sum(counts.values()), set(validators)
    limit = fees.limit if fees.fee else 0
    if total > limit:
        return f"it counts {total} verdicts, but may pay {limit}"
    decided = sum(outcome != Decision.UNKNOWN for outcome in outcomes)
    for account, count in sorted(counts.items()):
        if account not in known:
            return f"it pays a fee to {account}, which is not a validator of the pool"
        if count > decided:
            return f"it counts {count} verdicts of {account}, but has {decided} decided submissions"
    return ""
