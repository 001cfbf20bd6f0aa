"""Results of the demo: the object for `--json`, one row per worker, and the conditions for exit code 0."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from covey.chain import events
from covey.chain.amounts import TokenUnit, format_amount
from covey.chain.contracts import Contracts
from covey.demo.demo_network import POOL
from covey.demo.participants import Participant, Participants
from covey.protocol.api.public import StatusView, SubmissionView
from covey.protocol.ids import Step


@dataclass(slots=True, kw_only=True)
class Record:
    """Results so far, from events on chain and from the trainer's metrics."""

    rewards: dict[int, float] = field(default_factory=dict)
    """Mean reward on held-out prompts at temperature 1, by step."""
    live: dict[int, float] = field(default_factory=dict)
    """Share of the rollouts of a step's batch that are in live groups, by step."""
    truncated: dict[int, float] = field(default_factory=dict)
    """Share of the completions of a step's batch that were cut at the token limit, by step."""
    slashed: dict[str, str] = field(default_factory=dict)
    """Hash of the first transaction that slashed each node, by the node's address."""
    claimed: Counter[str] = field(default_factory=Counter)
    """Rewards paid to each contributor in the token's smallest unit, by the contributor's address."""

    def note(self, event: events.AnyEvent) -> None:
        """Record a slashing or a paid reward from an event on chain. Other events are ignored."""
        match event:
            case events.CaseExecuted():
                self.slashed.setdefault(event.node, event.transaction_hash)
            case events.RewardClaimed():
                self.claimed[event.contributor] += event.amount
            case _:
                pass


def build_summary(
    record: Record,
    participants: Participants,
    contracts: Contracts,
    *,
    status: StatusView,
    submissions: Sequence[SubmissionView],
    seconds: float,
    processes: int,
) -> dict[str, Any]:
    """Build the object that `covey demo --json` writes."""
    honest = {p.node for p in participants.workers if not p.cheat}
    policies = contracts.policies
    return {
        "environment": participants.options.environment,
        "steps": max(record.rewards, default=0),
        "seconds": round(seconds, 1),
        "reward": [record.rewards[step] for step in sorted(record.rewards)],
        "live_share": [record.live[step] for step in sorted(record.live)],
        "truncated_share": [record.truncated[step] for step in sorted(record.truncated)],
        "accepted": sum(1 for s in submissions if is_accepted(s)),
        "rejected": dict(status.reasons),
        "slashed": dict(record.slashed),
        "honest_slashed": len(honest & set(record.slashed)),
        "claimed": sum(record.claimed.values()),
        "cumulative": contracts.ledger.get_settlement(POOL).posted,
        "policies": {str(n): policies.policy_of(POOL, Step(n)) for n in range(policies.steps_of(POOL))},
        "processes": processes,
    }


def is_accepted(submission: SubmissionView) -> bool:
    return submission.reason == "none" and submission.state in ("ACCEPTED", "SETTLED")


def list_failures(
    summary: Mapping[str, Any], participants: Participants, *, status: StatusView, submissions: Sequence[SubmissionView]
) -> list[str]:
    """List the conditions that are not met. An empty list means exit code 0."""
    honest = {p.node for p in participants.workers if not p.cheat}
    reward, policies = summary["reward"], summary["policies"]
    gain = sum(reward[-3:]) / max(1, len(reward[-3:])) - (reward[0] if reward else 0.0)
    required = participants.preset.gain * min(1.0, participants.options.steps / participants.preset.gain_steps)
    lost = [s for s in submissions if s.node in honest and not is_accepted(s)]
    unslashed = [p.name for p in participants.workers if p.cheat and p.node not in summary["slashed"]]
    on_chain = all(policies.get(str(s.step)) == s.record_hash for s in status.steps)
    checks = (
        (len(reward) == participants.options.steps + 1, f"rewards were measured at only {len(reward)} steps"),
        (gain >= required, f"the reward rose by {gain:.3f}, but {required:.3f} is required"),
        (not unslashed, f"cheats that were not slashed: {', '.join(unslashed)}"),
        (summary["honest_slashed"] == 0, "an honest worker was slashed"),
        (not lost, f"{len(lost)} submissions of honest workers were rejected"),
        (status.pause is None, f"the pool is paused: {status.pause.reason if status.pause else ''}"),
        (status.settled, "some work was not settled"),
        (summary["claimed"] == summary["cumulative"], "the claimed amount differs from what the ledger owes"),
        (
            on_chain and all(str(s.policy_version) in policies for s in submissions),
            "a policy that was used is not on chain",
        ),
    )
    return [message for holds, message in checks if not holds]


def describe_worker(
    worker: Participant,
    participants: Participants,
    record: Record,
    submissions: Sequence[SubmissionView],
    unit: TokenUnit,
) -> str:
    """Describe a worker: accepted submissions, rejected ones with reasons, claimed rewards, and slashing."""
    own = [s for s in submissions if s.node == worker.node]
    reasons = Counter(s.reason for s in own if s.reason != "none")
    rejected = ", ".join(f"{n} for {reason}" for reason, n in reasons.items()) or "0"
    name = worker.name + (f" ({worker.cheat})" if worker.cheat else "")
    claimed = format_amount(record.claimed[participants.get_address(worker.contributor)], unit)
    line = f"{name:24} {worker.node}  accepted {sum(map(is_accepted, own)):3d}  rejected {rejected}  claimed {claimed}"
    slashed = record.slashed.get(worker.node)
    return line + (f"\n{'':24} slashed in {slashed}" if slashed else "")
