"""The output of `covey trainer run` and `covey train`: on a terminal a line per step above a bar, otherwise log lines.

The functions here are sinks of the trainer's metrics. Nothing else is written to standard output.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from trainer.monitoring.metrics import Sink, Values

if TYPE_CHECKING:
    from rich.console import Console

SHOWN = (
    ("reward", "reward/mean", ".3f"),
    ("live", "batch/live_share", ".0%"),
    ("truncated", "batch/truncated_share", ".0%"),
    ("entropy", "policy/entropy", ".3f"),
    ("outside", "policy/outside_clip", ".4f"),
    ("norm", "optim/grad_norm", ".3g"),
    ("staleness", "staleness_mean", ".2f"),
    ("tokens/s", "perf/tokens_per_second", ",.0f"),
    ("idle", "trainer/idle_ratio", ".0%"),
)
"""Label, metric and format of the values in a step's line."""
SPEED_SECONDS = 30 * 86_400.0
"""Period over which the time left is estimated. Rich's own half minute is shorter than most steps."""


@contextmanager
def show_training(
    console: "Console", *, steps: int | None, advances_at: Literal["policy", "update"] = "policy"
) -> Iterator[Sink]:
    """Yield a sink that shows metrics until the context ends.

    `steps` is the number of the policy that ends the run. None means that the run has no end. The bar advances at
    published policies, or at updates if the run publishes none.
    On a terminal, enter the context before the log is configured, so that log lines appear above the bar.
    """
    from trainer.monitoring.metrics import log_line

    if not console.is_terminal:
        yield log_line
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    left = [] if steps is None else [TextColumn("left"), TimeRemainingColumn()]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *left)
    with Progress(
        *columns,
        console=console,
        redirect_stdout=False,
        redirect_stderr=sys.stderr.isatty(),
        speed_estimate_period=SPEED_SECONDS,
    ) as progress:
        bar, newest = progress.add_task("starting", total=steps), dict[str, str]()

        def show(event: str, step: int, values: Values) -> None:
            if event in ("update", "evaluation"):  # alarms and pauses are in the log
                console.print(format_line(event, step, values), highlight=False, markup=False)
                newest[event] = describe_newest(event, step, values)
            if event == "policy":
                newest[event] = f"policy {step} published"
            if newest:
                shown = ", ".join(newest[name] for name in ("policy", "update", "evaluation") if name in newest)
                progress.update(bar, description=shown)
            if event == advances_at:
                progress.update(bar, completed=step + (event == "update"))

        yield show


def describe_newest(event: str, step: int, values: Values) -> str:
    """Return the newest reward or evaluation for the bar. Example: "evaluation 0.610 at step 8"."""
    if event == "update":
        return f"reward {values.get('reward/mean', 0.0):.3f}"
    return f"evaluation {values['reward']:.3f} at step {step}"


def format_line(event: str, step: int, values: Values) -> str:
    """Format the line of an "update" or an "evaluation" event.

    Example: "step   12  reward 0.531  entropy 0.412  ...  idle 31%".
    """
    if event == "update":
        parts = [f"{label} {values[name]:{form}}" for label, name, form in SHOWN if name in values]
        return f"step {step:4d}  {'  '.join(parts)}"
    return f"step {step:4d}  evaluation: mean reward {values['reward']:.3f} of {values['n']} held-out completions"
