"""`covey tasks import|check|show|select|example`: data sets of tasks, from files in common formats to a pool."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from covey.console.options import Json
from covey.console.terminal import quote
from covey.errors import OperatorError

if TYPE_CHECKING:
    from rich.progress import Progress

    from covey.tasks.checking import CheckReport

Folder = Annotated[Path, typer.Argument(help="Folder of a data set.")]
SplitName = Literal["train", "held_out"]


def tasks_import(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Files of JSON lines (.jsonl, .jsonl.gz, .jsonl.zst) or Parquet, folders of such files, or folders "
            "and OWNER/NAME of the package datasets.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the data set to write.")],
    task_type: Annotated[str | None, typer.Option(help="Task type of rows that name none, for example math.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="Task type of the source as OLD=NEW; may be repeated.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read or graded, and count them.")
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of rows to import.")] = None,
    as_json: Json = False,
) -> None:
    """Import tasks into a data set, whose digest goes into a pool's parameters.

    The columns are problem_id, task_type, prompt, verification_info and solve_rate_NAME; others are ignored. Rows
    with the prompt of an earlier row are left out. Equal rows give an equal digest.

    Example: `covey tasks import rows.jsonl --out tasks`
    """
    from covey.tasks.dataset_row import Reading
    from covey.tasks.importing import import_rows
    from covey.tasks.sources import read_sources

    reading = Reading(task_type=task_type, renames=dict(map(_split_rename, rename or [])))
    with _progress(is_quiet=as_json) as progress:
        bar = progress.add_task("rows", total=limit)
        report = import_rows(
            read_sources(sources),
            out,
            reading,
            skip_bad=skip_bad,
            limit=limit,
            advance=lambda: progress.advance(bar),
        )
    if as_json:
        typer.echo(json.dumps(asdict(report)))
        return
    _show_rows(report.digest, report.rows)
    typer.echo(f"left out: {report.duplicates} with the prompt of an earlier row, {report.skipped} that are bad")
    for reason in report.reasons:
        typer.echo(f"  {quote(reason)}")


def tasks_check(folder: Folder, as_json: Json = False) -> None:
    """Hash a data set again, read every row, and compare the two splits.

    Held-out questions that share most of their words with a training question are counted, and the first are named.
    Those that differ only in their numbers are counted separately, because generated questions all do.

    Example: `covey tasks check tasks`
    """
    from covey.tasks.checking import check_data_set
    from covey.tasks.dataset import open_folder
    from covey.tasks.writing import ROWS_FILE

    manifest = open_folder(folder).manifest
    rows = manifest.find_file(ROWS_FILE)
    with _progress(is_quiet=as_json) as progress:
        bar = progress.add_task("bytes", total=manifest.size + (rows.size if rows else 0))
        report = check_data_set(folder, advance=lambda size: progress.advance(bar, size))
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        _show_check(report)


def tasks_show(
    folder: Folder,
    index: Annotated[int, typer.Argument(min=0, help="Number of the row in its split and task type.")] = 0,
    problem_id: Annotated[
        str | None, typer.Option("--id", help="problem_id to search for, instead of the number of the row.")
    ] = None,
    split: Annotated[SplitName | None, typer.Option(help="Split of the row, by default train.")] = None,
    task_type: Annotated[
        str | None, typer.Option("--type", help="Task type of the row; not needed if the data set has only one.")
    ] = None,
    pool_file: Annotated[
        Path | None, typer.Option("--pool-file", help="TOML file of the pool whose environment asks the question.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a row: the question, the data that grades its answer, and the prompt that a model is given.

    Example: `covey tasks show tasks 7 --split held_out --type math`
    """
    from covey.cli.row_lookup import find_row, find_spec, get_row
    from covey.environments.environment import TaskEnvironment
    from covey.environments.kinds.dataset_rows import RowSource
    from covey.environments.registry import load
    from covey.tasks.dataset import open_folder

    data_set = open_folder(folder)
    row = find_row(data_set, problem_id, split, task_type) if problem_id else get_row(data_set, index, split, task_type)
    environment = load(find_spec(data_set, row, pool_file), lambda _: data_set)
    asked: str | None = None
    if isinstance(environment, TaskEnvironment) and isinstance(environment.source, RowSource):
        prompt = environment.build_prompt(environment.source.build_task(row))
        asked = "\n".join(part for part in (prompt.system, prompt.text) if part)
    if as_json:
        typer.echo(json.dumps(asdict(row) | {"split": row.split, "asked": asked}))
        return
    typer.echo(f"{row.split} row of type {row.task_type}, problem {quote(row.problem_id)}")
    for name, rate in row.solve_rates.items():
        typer.echo(f"solve rate {quote(name)}: {rate:g}")
    for title, text in (
        ("question", row.prompt),
        ("graded by", json.dumps(row.verification_info, ensure_ascii=False)),
        ("asked", asked or "by the kind's own rule"),
    ):
        typer.echo(f"\n{title}:")
        typer.echo("\n".join(f"  {quote(line)}" for line in text.split("\n")))


def tasks_select(
    folder: Folder,
    solve_rate: Annotated[str, typer.Option(help="Name of the solve rate, as covey tasks check lists it.")],
    out: Annotated[Path, typer.Option(help="Folder of the data set to write.")],
    low: Annotated[float, typer.Option(min=0, max=1, help="Lowest solve rate to keep.")] = 0.125,
    high: Annotated[float, typer.Option(min=0, max=1, help="Highest solve rate to keep.")] = 0.5,
    as_json: Json = False,
) -> None:
    """Write a data set of the rows whose recorded solve rate is neither too low nor too high.

    Questions without solve rates can be filtered by `covey tasks filter`, which lets a smaller model answer them.

    Example: `covey tasks select tasks --solve-rate qwen_r1_distill_7b --out harder`
    """
    from covey.tasks.selecting import select_rows

    if low > high:
        raise OperatorError("bad_bounds", f"low {low} is above high {high}", fix="Swap --low and --high")
    digest, counts = select_rows(folder, out, solve_rate=solve_rate, low=low, high=high)
    if as_json:
        typer.echo(json.dumps({"digest": digest} | counts))
        return
    typer.echo(f"digest {digest}")
    typer.echo(", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items()))


def tasks_example(
    out: Annotated[Path, typer.Option(help="File of JSON lines to write, which must not exist.")],
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Number of rows.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed that determines the rows.")] = 0,
    as_json: Json = False,
) -> None:
    """Write example tasks: word problems, algebra, small programs, multiple choice and short answers.

    Example: `covey tasks example --rows 2000 --out rows.jsonl`
    """
    from covey.runtime.files import write_atomically
    from covey.tasks.examples import build_rows

    if out.exists():
        raise OperatorError("file_exists", f"{out} exists", fix="Name a new file with --out")
    examples = build_rows(rows, seed=seed)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in examples)
    try:
        write_atomically(out, text.encode())
    except OSError as error:
        raise OperatorError(
            "no_folder",
            f"{out} cannot be written: {error.strerror}",
            fix="Name a file in a folder that you may write to",
        ) from error
    count = len(examples)
    typer.echo(json.dumps({"rows": count, "file": str(out)}) if as_json else f"{count} rows in {out}")


def _split_rename(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise OperatorError("bad_rename", f"--rename {text} is not OLD=NEW", fix="Write for example gsm8k=math")
    return old, new


@contextmanager
def _progress(*, is_quiet: bool) -> "Iterator[Progress]":
    """Show a progress bar on a terminal, and nothing otherwise."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=is_quiet or not console.is_terminal) as progress:
        yield progress


def _show_rows(digest: str, rows: dict[str, int]) -> None:
    typer.echo(f"digest {digest}")
    for name, count in rows.items():
        typer.echo(f"{count:>9}  {quote(name)}")


def _show_check(report: "CheckReport") -> None:
    _show_rows(report.digest, report.rows)
    for name, lengths in (
        ("characters of a prompt", report.prompt_characters),
        ("bytes of a row", report.row_bytes),
    ):
        typer.echo(f"{name}: median {lengths.median}, 99 of 100 up to {lengths.p99}, largest {lengths.largest}")
    typer.echo(f"rows without solve rates: {report.without_solve_rates}")
    for name, count in report.solve_rates.items():
        typer.echo(f"rows with the solve rate {quote(name)}: {count}")
    typer.echo(f"held-out questions with the words of a training question and other numbers: {report.same_but_numbers}")
    typer.echo(f"held-out questions that are nearly a training question: {report.near_duplicates}")
    for pair in report.first_near_duplicates:
        typer.echo(f"  {quote(pair.held_out)} shares {pair.share:.0%} with {quote(pair.train)}")
    if not report.are_all_compared:
        typer.echo("not all likely pairs were compared: there may be more")
