"""Sums of distances over many submissions of one node, and their limits.

One submission in bfloat16 hides a difference that is small in every window. Over many submissions honest work comes
close to its mean, and so the difference shows. Every validator states the sums of what it replayed in its evidence
(`ItemSum`, by the name of the statistic in `Thresholds`). They are added up by node and validator. `compare` says
whether a node is above a limit, so that less than a quorum of hostile validators never raises an honest node above a
limit. Nor do they keep a node below it, if at least 2 `quorum` - 1 validators state sums. Anybody can repeat all of
this from the evidence.

Invariant: over `WINDOW` submissions an honest node exceeds a limit with a probability of at most `FALSE_ALARM_RATE`, if
the mean of its distances is at most `1 + allowance` times the true mean of the work that calibration saw.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from covey.protocol.thresholds import Pooled, Thresholds

StatisticName = Literal["exponent", "mantissa", "lost", "margin", "logprob"]
"""Name of a statistic in `Thresholds`. The first two have one item per window, the others one per token."""
STATISTICS: tuple[StatisticName, ...] = get_args(StatisticName)
PER_WINDOW = ("exponent", "mantissa")
WINDOW = 1000
"""Number of submissions after which the sums of a node that is below its limits begin again at 0."""
FALSE_ALARM_RATE = 1e-6
"""Probability with which one of the sums of an honest node exceeds its limit in `WINDOW` submissions."""
REPLAY_ALLOWANCE = 0.05
"""Part of the calibrated mean by which the mean of honest work may exceed it (decision 073)."""
SUSPENSION_ALLOWANCE = 0.2
"""Part of the calibrated mean by which a node may exceed it before it is suspended (decision 073)."""
ROUNDING = 1e-9
"""Relative difference of two limits that were computed on different machines."""


class ItemSum(BaseModel):
    """Sum of one statistic over replayed windows or tokens. Example: ItemSum(total=3.5, items=96)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    total: float = Field(ge=0, allow_inf_nan=False)
    """Sum over the items. It is rounded once, so it does not depend on their order."""
    items: int = Field(ge=0, lt=1 << 63)
    """Number of windows or tokens."""


Sums = Mapping[StatisticName, ItemSum]
"""Sums of one submission, or of many, by the name of the statistic."""
_SUMS: TypeAdapter[dict[StatisticName, ItemSum]] = TypeAdapter(dict[StatisticName, ItemSum])


class SumStanding(NamedTuple):
    """A sum of a node with its limit. Example: SumStanding("logprob", total=2.0, items=9000, limit=2.5)."""

    statistic: StatisticName
    total: float
    items: int
    limit: float

    @property
    def is_above(self) -> bool:
        return not self.total <= self.limit


def sum_up(items: Mapping[StatisticName, Collection[float]]) -> dict[StatisticName, ItemSum]:
    """Return the sum of each statistic. The values must be finite and not negative."""
    return {name: ItemSum(total=math.fsum(values), items=len(values)) for name, values in items.items()}


def add(one: Sums, other: Sums) -> dict[StatisticName, ItemSum]:
    """Return the sums of both. A statistic that is missing in one of them counts 0 there."""
    both = dict(one)
    for name, each in other.items():
        before = both.get(name, ItemSum(total=0.0, items=0))
        both[name] = ItemSum(total=before.total + each.total, items=before.items + each.items)
    return both


def compute_limit(pooled: Pooled, items: int, *, allowance: float, quorum: int) -> float:
    """Return the limit of the sum of a node's work over `items` items that one validator replayed.

    It is Bernstein's bound for a mean that is `1 + allowance` times the calibrated one, plus the error that the
    calibrated mean may have. One half of `FALSE_ALARM_RATE` is for this error, in each statistic. The other half is
    divided by the number of comparisons in a window, one after each submission of each statistic, and by `quorum`.

    The reason for the last factor: let h honest validators state sums. If the one that `compare` keeps is above the
    limit, so are at least max(1, h - `quorum` + 1) honest ones. By Markov's inequality this is at most `quorum` times
    as probable as for a single one, however much the sums of different validators depend on each other.
    """
    part = FALSE_ALARM_RATE / 2 / len(STATISTICS)
    error, rate = pooled.compute_mean_error(part), part / (WINDOW * quorum)
    return pooled.model_copy(update={"mean": (pooled.mean + error) * (1 + allowance)}).compute_limit(items, rate)


def compare(
    by_validator: Mapping[str, Sums], limits: Thresholds, *, quorum: int, allowance: float
) -> list[SumStanding]:
    """Return the standing of a node in each statistic that has a limit and enough validators.

    In each statistic, the sums of one validator count. Validators are ordered by how far their own sums are above the
    limit of these sums. The one that counts has `quorum` - 1 validators below it, and at least `quorum` - 1 above it.
    With fewer than 2 `quorum` - 1 validators there are fewer below it.

    The sums of two validators are never added: both may have replayed the same submissions.
    """
    standings: list[SumStanding] = []
    for name in STATISTICS:
        pooled: Pooled | None = getattr(limits, name)
        stated = [sums[name] for sums in by_validator.values() if name in sums and sums[name].items]
        if pooled is None or len(stated) < quorum:
            continue
        both = [(each, compute_limit(pooled, each.items, allowance=allowance, quorum=quorum)) for each in stated]
        both.sort(key=lambda each: each[0].total - each[1])
        kept, limit = both[min(quorum - 1, len(both) - quorum)]
        standings.append(SumStanding(name, kept.total, kept.items, limit))
    return standings


def compute_room(by_validator: Mapping[str, Sums], limits: Thresholds, *, quorum: int) -> float:
    """Return how far a node is below its limits, as a part of that of a node without sums. Negative: it is above one.

    It is the least of all statistics, and at most 1. Work whose mean is below the limit's mean leaves more room as a
    rule, because the limit grows faster than the sum.
    """
    room = 1.0
    for each in compare(by_validator, limits, quorum=quorum, allowance=REPLAY_ALLOWANCE):
        start = compute_limit(getattr(limits, each.statistic), 0, allowance=REPLAY_ALLOWANCE, quorum=quorum)
        if start:  # otherwise the limit of one submission is not above the mean either
            room = min(room, (each.limit - each.total) / start)
    return room


def get_highest(standings: Iterable[SumStanding]) -> SumStanding | None:
    """Return the sum that is farthest above its limit, in proportion. None if all are below."""
    above = [each for each in standings if each.is_above]
    return max(above, key=lambda each: each.total / each.limit if each.limit else math.inf, default=None)


def get_sums(bundle: Mapping[str, Any]) -> Sums | None:
    """Return the sums that a bundle states of a replay.

    The result is None unless each statistic has a finite sum that is not negative, and those of windows and those of
    tokens have the same number of items.
    """
    try:
        sums = _SUMS.validate_python(bundle.get("sums"), strict=True)
    except ValidationError:
        return None
    if set(sums) != set(STATISTICS):
        return None
    counts = {(name in PER_WINDOW, each.items) for name, each in sums.items()}
    return sums if len(counts) == 2 else None  # one number of windows, and one of tokens


def find_possible(sums: Sums, limits: Thresholds, *, rows: int, proof_window: int, units: int, is_whole: bool) -> Sums:
    """Return the sums of statistics with a limit, if an accepting validator may have found them, or nothing.

    It replayed `rows` rows of a submission of `units` tokens. All of its sums are within the limits of one submission,
    as it would have rejected it otherwise.
    """
    tokens, windows = sums["logprob"].items, sums["mantissa"].items
    least, most = -(-tokens // proof_window), (tokens + rows * (proof_window - 1)) // proof_window
    if not (0 < rows <= tokens <= units and least <= windows <= most) or (is_whole and tokens != units):
        return {}
    limited: dict[StatisticName, ItemSum] = {}
    for name, each in sums.items():
        pooled: Pooled | None = getattr(limits, name)
        if pooled is not None:
            limited[name] = each
            if each.total > pooled.compute_limit(each.items, limits.false_reject_rate) * (1 + ROUNDING):
                return {}
    return limited


def list_differing(one: Sums, other: Sums, limits: Thresholds, *, is_same_engine: bool) -> list[StatisticName]:
    """Return the statistics in which two statements about the same rows differ.

    With the same engine every bit counts. Otherwise totals of statistics with a limit may differ by
    `SUSPENSION_ALLOWANCE` of the calibrated mean and by one item, and numbers of items must be the same.
    """
    names = [name for name in STATISTICS if name in one or name in other]
    if is_same_engine:
        return [name for name in names if one.get(name) != other.get(name)]
    return [name for name in names if not _is_close(one.get(name), other.get(name), getattr(limits, name))]


def _is_close(one: ItemSum | None, other: ItemSum | None, pooled: Pooled | None) -> bool:
    if one is None or other is None or one.items != other.items:
        return one is other
    tolerance = math.inf if pooled is None else SUSPENSION_ALLOWANCE * pooled.mean * one.items + pooled.largest
    return abs(one.total - other.total) <= tolerance
