"""What `covey eval` shows: its progress, and the tables of its results."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from rich.table import Table
from rich.text import Text

from covey.console.terminal import describe_duration, quote
from covey.evaluation.evaluate import EvaluationObserver
from covey.evaluation.evaluation_config import EvaluationConfig
from covey.evaluation.evaluation_page import (
    describe_setting,
    describe_skipped,
    format_share,
    tabulate_comparisons,
    tabulate_models,
)
from covey.evaluation.evaluation_scores import EvaluationResults

INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM, as shells report the signal of Ctrl-C."""
LINE_SECONDS = 15.0
"""Minimum time in seconds between two lines of progress without a terminal."""


@contextmanager
def show_progress(folder: Path, *, is_quiet: bool) -> Iterator[EvaluationObserver]:
    """Yield an observer that shows a bar on a terminal, and lines elsewhere: one per model, and one every LINE_SECONDS.

    Ctrl-C and SIGTERM end the command with a line that says how to continue.
    """
    view = _ProgressView(is_quiet=is_quiet)
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with view.bar:
            yield EvaluationObserver(begin=view.begin, name=view.name, advance=view.advance)
    except KeyboardInterrupt:
        counts = f"{view.done} of {view.total} completions, which {folder} keeps"
        typer.echo(f"stopped after {counts}. Run the same command again to continue", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def show_results(results: EvaluationResults, config: EvaluationConfig) -> None:
    """Print the tables of an evaluation."""
    typer.echo(describe_setting(results, config))
    for text in describe_skipped(results.skipped):
        typer.echo(text)
    _print_table(*tabulate_models(results), texts=1)
    for model in results.models:
        if model.limits:
            counts = ", ".join(f"{count} {limit}" for limit, count in model.limits.items())
            typer.echo(f"{quote(model.label)}: counted as wrong without a comparison: {counts}")
        if model.calibration is not None:
            score = model.calibration
            published = "none" if score.hle_compatible is None else format_share(score.hle_compatible)
            typer.echo(
                f"{quote(model.label)}: calibration error {format_share(score.error)} over {score.answers} answers, "
                f"{score.without_confidence} without a confidence; as published (hle_compatible): {published}"
            )
    if results.comparisons:
        typer.echo("paired comparison on the same questions:")
        _print_table(*tabulate_comparisons(results), texts=2)
    typer.echo("intervals: 95 percent, clustered by question")


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int) -> None:
    """Print a table. On a narrow terminal its lines are wrapped by the terminal, so no number is cut off."""
    table = Table(box=None, pad_edge=False)
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(quote(cell)) for cell in row))
    console = Console()
    width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(width, console.width)).print(table)


class _ProgressView:
    """Counts completions, and shows them. Completions are counted in another thread."""

    def __init__(self, *, is_quiet: bool) -> None:
        console = Console(stderr=True)
        self.total = self.done = 0
        self._has_lines = not (is_quiet or console.is_terminal)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        self.bar = Progress(*columns, console=console, transient=True, disable=is_quiet or not console.is_terminal)
        self._task = self.bar.add_task("reading the questions", total=None)
        self._started = self._shown = time.monotonic()
        self._before = 0

    def begin(self, total: int, done: int) -> None:
        self.total, self.done, self._before = total, done, done
        self._started = self._shown = time.monotonic()
        self.bar.update(self._task, total=total, completed=done)
        if self._has_lines and done:
            typer.echo(f"{done} of {total} completions exist already", err=True)

    def name(self, label: str) -> None:
        self.bar.update(self._task, description=quote(label).replace("[", "\\["))
        if self._has_lines:
            typer.echo(f"evaluating {quote(label)}: {self.done} of {self.total} completions", err=True)

    def advance(self, count: int) -> None:
        self.done += count
        self.bar.update(self._task, completed=self.done)
        now = time.monotonic()
        if self._has_lines and now - self._shown >= LINE_SECONDS:
            self._shown = now
            left = (now - self._started) / (self.done - self._before) * (self.total - self.done)
            typer.echo(f"{self.done} of {self.total} completions, about {describe_duration(left)} left", err=True)
