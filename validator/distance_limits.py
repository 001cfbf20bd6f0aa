"""Compares measured distances with limits for honest work: first each window and token, then sums over the submission.

Comparisons are written as `not value <= limit`, so that NaN exceeds every limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covey.protocol.params import VerificationParams
from covey.protocol.thresholds import Pooled, Thresholds
from covey.protocol.verdict import Reason
from covey.toploc.closeness import is_within
from validator.replay import RolloutDistances


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """The first distance above its limit. Example: Breach(reason=Reason.PROOF, row=3, statistics={"window": 1})."""

    reason: Reason
    statistics: dict[str, float | int]
    """Numbers that show the breach. All are finite: -1 replaces NaN and Inf."""
    row: int | None = None
    """Index of the rollout. None if a sum over the submission exceeds its limit."""


def find_breach(found: Sequence[RolloutDistances], rules: VerificationParams) -> Breach | None:
    """Return the first breach of a submission, or None. In the exact mode any difference is a breach."""
    limits = rules.thresholds
    for row, distances in enumerate(found):
        breach = _find_single(row, distances, limits)
        if breach is not None:
            return breach
    return _find_pooled(found, limits) or (_find_difference(found) if rules.mode == "exact" else None)


def _find_single(row: int, distances: RolloutDistances, limits: Thresholds) -> Breach | None:
    for window, d in enumerate(distances.windows):
        if not is_within(limits, d):
            statistics = {"exponent": d.sign_exponent_mismatches, "mantissa_rest": _show(d.mantissa_rest)}
            return Breach(reason=Reason.PROOF, row=row, statistics={"window": window, **statistics})
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
        total, allowed = float(values.sum()), pooled.compute_limit(len(values), limits.false_reject_rate)
        if not total <= allowed:
            statistics = {f"{name}_sum": _show(total), "limit": _show(allowed), "items": len(values)}
            return Breach(reason=reason, statistics=statistics)
    return None


def _find_difference(found: Sequence[RolloutDistances]) -> Breach | None:
    for name, _, values in collect_items(found):
        differing = int((~(values == 0)).sum())
        if differing:
            return Breach(reason=Reason.INEXACT, statistics={f"{name}_differing": differing, "items": len(values)})
    return None


def collect_items(found: Sequence[RolloutDistances]) -> list[tuple[str, Reason, NDArray[np.float64]]]:
    """Return the statistics that are summed over a submission.

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
