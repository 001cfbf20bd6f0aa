"""Output of the demo: one line per step, the stage of a slow step, and the summary."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from covey.chain.amounts import TokenUnit, format_amount
from covey.protocol.api.public import StatusView
from covey.protocol.status import StepState, SubmissionState, TaskState

SLOW_SECONDS = 8.0
"""Time in seconds after which the current stage of a running step is printed, repeatedly."""


def find_stage(status: StatusView, *, published: int) -> str:
    """Return a description of what the newest step is waiting for.

    It is derived from the coordinator's status and `published`, the number of policies on chain.
    """
    if published - 1 > status.step:
        return "the coordinator is reading the chain"
    if status.step < 0:
        return "the trainer is publishing the first policy"
    newest = status.steps[-1].state if status.steps else StepState.OPEN
    if newest == StepState.READY:
        return "the trainer is training and publishing"
    if status.tasks.get(TaskState.ASSIGNED):
        return "workers are generating"
    if status.tasks.get(TaskState.PENDING):
        return "tasks are waiting for a worker"
    if status.submissions.get(SubmissionState.SUBMITTED):
        return "validators are judging"
    return "accepted groups are being packed into a batch"


def describe_learning(summary: Mapping[str, Any]) -> str:
    """Describe the rewards, the live rollouts and the truncated completions in one line.

    Example: "reward 0.137 at first, 0.795 at the end; of the last batch 69% in live groups, 0% truncated".
    """
    reward, live, truncated = summary["reward"], summary["live_share"], summary["truncated_share"]
    if not reward or not live:
        return "no step was trained"
    return (
        f"reward {reward[0]:.3f} at first, {reward[-1]:.3f} at the end; "
        f"of the last batch {live[-1]:.0%} in live groups, {truncated[-1]:.0%} truncated"
    )


def describe_success(summary: Mapping[str, Any]) -> str:
    """Return a sentence about what succeeded, without claiming what did not happen.

    Example: "the model learned, nobody was slashed, honest work was paid".
    """
    slashed = len(summary["slashed"])
    cheats = f"{slashed} cheat{'s were' if slashed > 1 else ' was'} slashed" if slashed else "nobody was slashed"
    paid = "honest work was paid" if summary["claimed"] else "there was no work to pay for"
    return f"the model learned, {cheats}, {paid}"


class DemoScreen:
    """Prints each line once, so that the output is readable in a log as well as on a terminal."""

    def __init__(self, steps: int) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._steps = steps
        self._started = time.monotonic()
        self._shown: set[str] = set()
        self._moved = self._started
        self._step = -1

    @property
    def seconds(self) -> float:
        """Seconds since this object was created."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        self._console.print(f"[dim]{self.seconds:6.1f} s[/dim]  {text}")

    def say_once(self, key: str, text: str) -> None:
        if key not in self._shown:
            self._shown.add(key)
            self.say(text)

    def show_step(self, step: int, reward: float, status: StatusView) -> None:
        """Print a policy's step and its reward on held-out prompts at temperature 1."""
        accepted = sum(n for state, n in status.submissions.items() if state != SubmissionState.SUBMITTED)
        bar = "#" * round(30 * reward)
        self.say(f"step {step:3d}/{self._steps}  reward {reward:.3f} [green]{bar:<30}[/green] {accepted:4d} judged")

    def show_stage(self, stage: str, step: int) -> None:
        """Print the current stage of a step if the step is slow."""
        now = time.monotonic()
        if step != self._step:
            self._step, self._moved = step, now
        elif now - self._moved > SLOW_SECONDS:
            self._moved = now
            self.say(f"[yellow]step {step} is slow: {stage}[/yellow]")

    def show_summary(
        self, summary: Mapping[str, Any], workers: Sequence[str], failures: Sequence[str], unit: TokenUnit
    ) -> None:
        """Print rewards, workers and policies, and whether the demo succeeded."""
        console = self._console
        console.rule("mean reward on held-out prompts at temperature 1, by step")
        console.print("  ".join(f"{step}:{value:.3f}" for step, value in enumerate(summary["reward"])))
        console.rule("workers")
        for line in workers:
            console.print(line)
        rejected = ", ".join(f"{n} for {reason}" for reason, n in summary["rejected"].items()) or "none"
        console.print(f"submissions accepted {summary['accepted']}, rejected {rejected}")
        claimed, owed = (format_amount(summary[name], unit) for name in ("claimed", "cumulative"))
        console.print(f"claimed {claimed} of {owed} that the ledger owes")
        console.rule("published policies on chain")
        for step, record_hash in summary["policies"].items():
            console.print(f"{step:>4}  {record_hash}")
        console.print(describe_learning(summary))
        console.print(f"{summary['steps']} steps in {summary['seconds']:.1f} s, {summary['processes']} processes")
        for failure in failures:
            console.print(f"[red]FAILED[/red] {failure}")
        if not failures:
            console.print(f"[green]ok[/green]: {describe_success(summary)}")
