"""The output of `covey trainer run`: on a terminal one line per step above a progress bar, otherwise log lines.

The functions here are sinks of the trainer's metrics. Nothing else is written to standard output.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Values = Mapping[str, float | int | str]
Sink = Callable[[str, int, Values], None]

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


@contextmanager
def show_training(console: "Console", *, steps: int | None) -> Iterator[Sink]:
    """Yield a sink that shows metrics until the context ends.

    `steps` is the number of the policy that ends the run. None means that the run has no end.
    On a terminal, enter the context before the log is configured, so that log lines appear above the bar.
    """
    from trainer.monitoring.metrics import log_line

    if not console.is_terminal:
        yield log_line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=sys.stderr.isatty()) as progress:
        bar = progress.add_task("starting", total=steps)

        def show(event: str, step: int, values: Values) -> None:
            if event == "policy":
                progress.update(bar, completed=step, description=f"policy {step} published")
            elif event in ("update", "evaluation"):  # alarms and pauses are in the log
                console.print(format_line(event, step, values), highlight=False, markup=False)

        yield show


def format_line(event: str, step: int, values: Values) -> str:
    """Format the line of an "update" or an "evaluation" event.

    Example: "step   12  reward 0.531  entropy 0.412  ...  idle 31%".
    """
    if event == "update":
        parts = [f"{label} {values[name]:{form}}" for label, name, form in SHOWN if name in values]
        return f"step {step:4d}  {'  '.join(parts)}"
    return f"step {step:4d}  evaluation: mean reward {values['reward']:.3f} of {values['n']} held-out completions"
