"""Who does what next: pure functions over numbers, called by `service`.  No clock, no database."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from covey.protocol.params import PoolParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that asked for work."""

    address: str
    free_slots: int
    accepted: int
    dropped: int
    has_policy: bool
    """Whether its cached policy is the task's."""


def count_tasks_to_plan(
    params: PoolParams, *, step: int, packed_groups: int, unpacked_groups: int, groups_in_flight: int
) -> int:
    """How many tasks of the latest policy to add, so that admission keeps pace with training.

    By the time the policy of `step` is out, at most (step + 1 + max_staleness) batches may have been admitted: then no
    rollout is older than `max_staleness` when it is trained on (the rule of AReaL, arXiv 2505.24298, section 5.1).
    `unpacked_groups` are accepted and still fresh enough; rejected, void and outdated groups do not count and are
    planned anew.
    """
    batches = step + 1 + params.max_staleness
    if params.max_steps is not None:
        batches = min(batches, params.max_steps)
    missing = batches * params.groups_per_step - packed_groups - unpacked_groups - groups_in_flight
    return max(0, -(-missing // params.groups_per_task))


def match(tasks: Sequence[int], candidates: Iterable[Candidate]) -> list[tuple[int, str]]:
    """Pairs of (task, node): one task a node and turn, those that drop least first, then those that hold the policy."""
    ranked = sorted(candidates, key=lambda c: (compute_drop_rate(c.accepted, c.dropped), not c.has_policy, c.address))
    slots = {c.address: c.free_slots for c in ranked}
    pairs: list[tuple[int, str]] = []
    waiting = list(tasks)
    while waiting and any(slots.values()):
        for candidate in ranked:
            if waiting and slots[candidate.address] > 0:
                slots[candidate.address] -= 1
                pairs.append((waiting.pop(0), candidate.address))
    return pairs


def compute_drop_rate(accepted: int, dropped: int) -> float:
    """Share of leases that came to nothing, with one imaginary success so that a newcomer is not judged."""
    return dropped / (accepted + dropped + 1)
