"""Scheduling: how many tasks to plan, when a batch is full, and which node gets which task.

All functions are pure. They use no clock and no database.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from covey.protocol.params import PoolParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that asks for work and may get a lease."""

    address: str
    accepted: int
    dropped: int
    cached_version: int | None
    """Newest policy that the node has on disk. None if it accepts any policy."""
    first_version: int = 0
    """First policy that was published after the node registered. The node could choose its key with knowledge of older
    policies' hashes."""

    def serves(self, version: int) -> bool:
        """Return whether the node may get a task of a policy, because it has that policy or a newer one."""
        return self.cached_version is None or version <= self.cached_version

    def is_early(self, version: int) -> bool:
        """Return whether the node registered before the policy was published that it would use for a task."""
        return self.first_version <= (version if self.cached_version is None else self.cached_version)


class PlannedTask(NamedTuple):
    """A pending task and the policy for which it was planned. Example: PlannedTask(task=7, version=3)."""

    task: int
    version: int


class Groups(NamedTuple):
    """Numbers of groups in accepted work. Example: Groups(sampled=6, live=4)."""

    sampled: int
    live: int
    """Number of groups whose rewards are not all equal, as counted by validators."""


def count_tasks_to_plan(
    params: PoolParams, *, step: int, packed_groups: int, unpacked_groups: int, groups_in_flight: int
) -> int:
    """Return how many tasks of the latest policy to add, so that admission keeps pace with training.

    When the policy of `step` is published, at most (step + 1 + max_staleness) batches may have been admitted. Then no
    rollout is older than `max_staleness` when it is trained on (the rule of AReaL, arXiv 2505.24298, section 5.1).
    `unpacked_groups` are accepted and still fresh enough. Rejected, void and outdated groups do not count, so they are
    planned again.
    """
    missing = _count_batches(params, step) * params.groups_per_step - packed_groups - unpacked_groups - groups_in_flight
    return max(0, -(-missing // params.groups_per_task))


def _count_batches(params: PoolParams, step: int) -> int:
    batches = step + 1 + params.max_staleness
    return batches if params.max_steps is None else min(batches, params.max_steps)


def count_tasks_to_sample(
    params: PoolParams, *, step: int, closed_batches: int, unpacked: Groups, groups_in_flight: int, seen: Groups
) -> int:
    """Return how many tasks to add with the online filter, where open batches require live groups.

    Enough groups are kept in flight to bring the missing live groups. The expected share of live groups is that of
    `seen`, the accepted work of fresh policies, plus one imaginary batch of live groups. That batch prevents a flood of
    tasks after the first few dead groups. The cap on sampling limits the number, and a batch at the cap is trained with
    the live groups that it has.
    """
    open_batches = _count_batches(params, step) - closed_batches
    missing = open_batches * params.groups_per_step - unpacked.live
    share = Fraction(seen.live + params.groups_per_step, seen.sampled + params.groups_per_step)
    wanted = math.ceil(missing / max(share, 1 / Fraction(params.max_sampling))) - groups_in_flight
    room = open_batches * params.max_groups_per_step - unpacked.sampled - groups_in_flight
    return max(0, min(-(-wanted // params.groups_per_task), room // params.groups_per_task))


def find_batch(params: PoolParams, waiting: Sequence[Groups]) -> int | None:
    """Return how many of the waiting submissions, oldest first, make a batch, or None while there are too few.

    A batch takes as few submissions as contain `groups_per_step` groups, or fill the cap on sampling. With the online
    filter, only live groups count for the first condition.
    """
    sampled = live = 0
    for count, groups in enumerate(waiting, start=1):
        sampled, live = sampled + groups.sampled, live + groups.live
        if sampled >= params.max_groups_per_step or (params.online_filter and live >= params.groups_per_step):
            return count
    return None


def is_capped(params: PoolParams, batch: Groups) -> bool:
    """Return whether a batch was closed by the cap on sampling with too few live groups."""
    is_full = batch.sampled >= params.max_groups_per_step
    return params.online_filter and is_full and batch.live < params.groups_per_step


def match(works: Iterable[PlannedTask], candidates: Iterable[Candidate]) -> list[tuple[PlannedTask, Candidate]]:
    """Return which node gets which task. A node gets at most one.

    Nodes with the lowest drop rate come first, and among these the ones with the newest policy. With several offers a
    node could collect the task that it prefers and let the others expire.

    Tasks of the newest policy are assigned first. A node that has this policy can do all tasks, so the older tasks are
    left for nodes that can do nothing else. A node that registered after a policy was published gets its tasks only if
    no earlier node asks, because it may have tried keys until the prompts and seeds suited it.
    """
    ranked = sorted(
        candidates,
        key=lambda c: (compute_drop_rate(c.accepted, c.dropped), -(c.cached_version or 0), c.address),
    )
    served: set[str] = set()
    pairs: list[tuple[PlannedTask, Candidate]] = []
    for version, group in groupby(sorted(works, key=lambda work: -work.version), key=lambda work: work.version):
        able = [candidate for candidate in ranked if candidate.serves(version)]
        able = [candidate for candidate in able if candidate.is_early(version)] or able
        free = [candidate for candidate in able if candidate.address not in served]
        chosen = list(zip(group, free, strict=False))
        served.update(candidate.address for _, candidate in chosen)
        pairs += chosen
    return pairs


def compute_drop_rate(accepted: int, dropped: int) -> float:
    """Return the share of dropped leases. One imaginary success keeps the rate of a newcomer low."""
    return dropped / (accepted + dropped + 1)
