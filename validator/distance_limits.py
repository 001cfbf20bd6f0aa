"""Compares measured distances with limits for honest work.

In the calibrated lane each window and token has a limit, and sums over the replayed rollouts have one, too. In the
exact lane any difference is a breach.

Comparisons are written as `not value <= limit`, so that NaN exceeds every limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from covey.protocol.params import VerificationParams
from covey.protocol.running_sums import StatisticName
from covey.protocol.thresholds import Pooled, Thresholds
from covey.protocol.verdict import Reason
from covey.toploc.closeness import is_within
from covey.toploc.proofs import Distances
from validator.replay import RolloutDistances


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """The first distance above its limit. Example: Breach(reason=Reason.PROOF, row=3, statistics={"window": 1})."""

    reason: Reason
    statistics: dict[str, float | int]
    """Numbers that show the breach. All are finite: -1 replaces NaN and Inf."""
    row: int | None = None
    """Index of the rollout. None if a sum over the rollouts exceeds its limit."""
    is_drawn: bool = False
    """Whether the drawn rollouts alone show it."""


WINDOWS_PER_CHANGED = 32
"""Minimum number of a submission's windows for each window that a single fault may change (decision 064)."""


def find_breach(found: Sequence[RolloutDistances], rules: VerificationParams, *, drawn: int = 0) -> Breach | None:
    """Return the first breach of the replayed rollouts of a submission, or None.

    The limits of the sums follow from the number of windows and tokens in `found`, so they hold for any part of a
    submission at the same false-reject rate. The first `drawn` rollouts are judged alone first. So a validator that
    replayed only these gives the same reason as one that replayed all. In the exact mode the rules of the exact lane
    are used, which name the first difference.
    """
    if rules.mode == "exact":
        breach = _find_difference(found, rules)
        return breach and replace(breach, is_drawn=breach.row is not None and breach.row < drawn)
    breach = _find_beyond_limits(found[:drawn], rules.thresholds) if drawn else None
    return replace(breach, is_drawn=True) if breach else _find_beyond_limits(found, rules.thresholds)


def _find_beyond_limits(found: Sequence[RolloutDistances], limits: Thresholds) -> Breach | None:
    for row, distances in enumerate(found):
        breach = _find_single(row, distances, limits)
        if breach is not None:
            return breach
    return _find_pooled(found, limits)


def _find_single(row: int, distances: RolloutDistances, limits: Thresholds) -> Breach | None:
    for window, d in enumerate(distances.windows):
        if not is_within(limits, d):
            statistics = {"exponent": d.sign_exponent_mismatches, "mantissa_rest": _show(d.mantissa_rest)}
            return Breach(reason=Reason.PROOF, row=row, statistics={"window": window, **statistics})
    return _find_token(row, distances, limits)


def _find_token(row: int, distances: RolloutDistances, limits: Thresholds) -> Breach | None:
    token = _find_beyond(distances.margins, limits.margin_max)
    if token is not None:
        is_end = distances.finished and token == distances.tokens - 1
        reason = Reason.FALSE_TERMINATION if is_end else Reason.TOKEN_MARGIN
        return Breach(reason=reason, row=row, statistics={"token": token, "margin": _show(distances.margins[token])})
    token = _find_beyond(distances.deviations, limits.logprob_max)
    if token is not None:
        statistics = {"token": token, "deviation": _show(distances.deviations[token])}
        return Breach(reason=Reason.LOGPROB, row=row, statistics=statistics)
    return None


def _find_pooled(found: Sequence[RolloutDistances], limits: Thresholds) -> Breach | None:
    for name, reason, values in collect_items(found):
        pooled: Pooled | None = getattr(limits, name)
        if pooled is None:
            continue
        total, allowed = math.fsum(values), pooled.compute_limit(len(values), limits.false_reject_rate)
        if not total <= allowed:
            statistics = {f"{name}_sum": _show(total), "limit": _show(allowed), "items": len(values)}
            return Breach(reason=reason, statistics=statistics)
    return None


def list_differing(found: Sequence[RolloutDistances], proof_window: int) -> list[set[int]]:
    """Return the windows of each rollout in which a proof, a token or a log-probability differs in any bit."""
    return [
        {
            *(window for window, each in enumerate(row.windows) if not _is_equal(each)),
            *(np.flatnonzero(~(row.margins == 0) | ~(row.deviations == 0)) // proof_window).tolist(),
        }
        for row in found
    ]


def _find_difference(found: Sequence[RolloutDistances], rules: VerificationParams) -> Breach | None:
    """Return the first difference. It is soft if all differences may follow from one fault of a worker's hardware.

    Such a fault changes the windows of one rollout from one token on. It rarely changes which token is sampled. Tokens
    beyond the limits of the calibrated lane, and a lost end token, are hard for the reason that this lane gives.
    """
    differing = list_differing(found, rules.proof_window)
    rows = [row for row, windows in enumerate(differing) if windows]
    if not rows:
        return None
    changed, total = sum(map(len, differing)), sum(len(each.windows) for each in found)
    lost = sum(int(np.count_nonzero(~(each.margins == 0))) for each in found)
    first = found[rows[0]]
    reason, statistics = _describe_difference(first)
    if len(rows) == 1 and lost <= 1 and changed * WINDOWS_PER_CHANGED <= total:
        beyond = _find_token(rows[0], first, rules.thresholds) and _find_single(rows[0], first, rules.thresholds)
        if beyond is not None:
            reason, statistics = beyond.reason, beyond.statistics
        elif first.finished and first.margins[-1] != 0:
            reason = Reason.FALSE_TERMINATION
            statistics = {"token": first.tokens - 1, "margin": _show(first.margins[-1])}
        else:
            reason = Reason.INEXACT
    return Breach(reason=reason, row=rows[0], statistics={**statistics, "differing": changed, "windows": total})


def _describe_difference(row: RolloutDistances) -> tuple[Reason, dict[str, float | int]]:
    for window, each in enumerate(row.windows):
        if not _is_equal(each):
            statistics = {"exponent": each.sign_exponent_mismatches, "mantissa": _show(each.mantissa_mean)}
            return Reason.PROOF, {"window": window, **statistics}
    for token in np.flatnonzero(~(row.margins == 0)).tolist():
        is_end = row.finished and token == row.tokens - 1
        reason = Reason.FALSE_TERMINATION if is_end else Reason.TOKEN_MARGIN
        return reason, {"token": token, "margin": _show(row.margins[token])}
    token = int(np.flatnonzero(~(row.deviations == 0))[0])
    return Reason.LOGPROB, {"token": token, "deviation": _show(row.deviations[token])}


def _is_equal(distances: Distances) -> bool:
    return distances.sign_exponent_mismatches == 0 and distances.mantissa_mean == 0


def collect_items(found: Sequence[RolloutDistances]) -> list[tuple[StatisticName, Reason, NDArray[np.float64]]]:
    """Return the statistics that are summed over a submission, and over the submissions of a node.

    Each item is (name in `Thresholds`, reason of a rejection, values), with one float64 value per window or token.
    """
    windows = [window for each in found for window in each.windows]
    margins = np.concatenate([each.margins for each in found]).astype(np.float64)
    return [
        ("exponent", Reason.PROOF, np.array([w.sign_exponent_mismatches for w in windows], np.float64)),
        ("mantissa", Reason.PROOF, np.array([w.mantissa_mean for w in windows], np.float64)),
        ("lost", Reason.TOKEN_MARGIN, (~(margins <= 0)).astype(np.float64)),
        ("margin", Reason.TOKEN_MARGIN, margins),
        ("logprob", Reason.LOGPROB, np.concatenate([each.deviations for each in found])),
    ]


def _find_beyond(values: NDArray[np.floating], limit: float) -> int | None:
    """Return the index of the first value that exceeds `limit` or is NaN. None if there is none."""
    beyond = np.flatnonzero(~(values <= limit))
    return int(beyond[0]) if beyond.size else None


def _show(value: float) -> float:
    return round(float(value), 9) if math.isfinite(value) else -1.0
