"""Who does what next: pure functions over numbers.  No clock, no database."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import NamedTuple

from covey.protocol.params import PoolParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that asked for work, and may be given a lease."""

    address: str
    accepted: int
    dropped: int
    cached_version: int | None
    """The newest policy that it has; None says nothing."""
    first_version: int = 0
    """The first policy that was published after it registered. It could choose its key by the hashes of older ones."""

    def serves(self, version: int) -> bool:
        """Whether it may be given work that was planned for a policy: with that one, or a younger one."""
        return self.cached_version is None or version <= self.cached_version

    def is_early(self, version: int) -> bool:
        """Whether it registered before the policy was published with which it would do work planned for `version`."""
        return self.first_version <= (version if self.cached_version is None else self.cached_version)


class PlannedTask(NamedTuple):
    """A task and the policy that it was planned for.  Example: Work(task=7, version=3)."""

    task: int
    version: int


class Groups(NamedTuple):
    """Groups of accepted work.  Example: Groups(sampled=6, live=4)."""

    sampled: int
    live: int
    """Those whose rewards are not all equal, as validators counted."""


def count_tasks_to_plan(
    params: PoolParams, *, step: int, packed_groups: int, unpacked_groups: int, groups_in_flight: int
) -> int:
    """How many tasks of the latest policy to add, so that admission keeps pace with training.

    By the time the policy of `step` is out, at most (step + 1 + max_staleness) batches may have been admitted: then no
    rollout is older than `max_staleness` when it is trained on (the rule of AReaL, arXiv 2505.24298, section 5.1).
    `unpacked_groups` are accepted and still fresh enough; rejected, void and outdated groups do not count and are
    planned anew.
    """
    missing = _count_batches(params, step) * params.groups_per_step - packed_groups - unpacked_groups - groups_in_flight
    return max(0, -(-missing // params.groups_per_task))


def _count_batches(params: PoolParams, step: int) -> int:
    batches = step + 1 + params.max_staleness
    return batches if params.max_steps is None else min(batches, params.max_steps)


def count_tasks_to_sample(
    params: PoolParams, *, step: int, closed_batches: int, unpacked: Groups, groups_in_flight: int, seen: Groups
) -> int:
    """As `count_tasks_to_plan`, with the online filter: the batches that are not closed yet want live groups.

    As many groups are in flight as bring the missing live ones at the share of live groups among `seen`, accepted work
    of the policies that are fresh enough.  One imaginary batch of live groups is added to it, so that the first few
    dead ones start no flood.  No more are sampled than the cap allows: one batch makes do with what it then holds.
    """
    open_batches = _count_batches(params, step) - closed_batches
    missing = open_batches * params.groups_per_step - unpacked.live
    share = Fraction(seen.live + params.groups_per_step, seen.sampled + params.groups_per_step)
    wanted = math.ceil(missing / max(share, 1 / Fraction(params.max_sampling))) - groups_in_flight
    room = open_batches * params.max_groups_per_step - unpacked.sampled - groups_in_flight
    return max(0, min(-(-wanted // params.groups_per_task), room // params.groups_per_task))


def find_batch(params: PoolParams, waiting: Sequence[Groups]) -> int | None:
    """How many submissions, oldest first, make a batch: as few as hold `groups_per_step` groups, live ones where the
    pool filters, or fill its cap; None while there are too few."""
    sampled = live = 0
    for count, groups in enumerate(waiting, start=1):
        sampled, live = sampled + groups.sampled, live + groups.live
        if sampled >= params.max_groups_per_step or (params.online_filter and live >= params.groups_per_step):
            return count
    return None


def is_capped(params: PoolParams, batch: Groups) -> bool:
    """Whether a batch was closed by the cap on sampling, short of live groups."""
    is_full = batch.sampled >= params.max_groups_per_step
    return params.online_filter and is_full and batch.live < params.groups_per_step


def match(works: Iterable[PlannedTask], candidates: Iterable[Candidate]) -> list[tuple[PlannedTask, Candidate]]:
    """Return which node is given which task: at most one per node, to those that drop least first, then to those that
    have the newest policy.

    With several tasks a node could collect the one that it likes best, and let the offers of the others expire.
    The youngest policy's tasks are given away first: who can do them can do all, so that the others are left for those
    who cannot, and nobody waits in vain.  A node that registered after a policy was published is given its tasks only
    while no earlier node asks: it could try keys until one draws the prompts and seeds that it likes.
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
    """Share of leases that came to nothing, with one imaginary success so that a newcomer is not judged."""
    return dropped / (accepted + dropped + 1)
