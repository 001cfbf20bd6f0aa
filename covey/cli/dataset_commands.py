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

Folder = Annotated[Path, typer.Argument(help="Folder of the data set to read.")]
SplitName = Literal["train", "held_out"]


def tasks_import(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Sources of the rows: files of JSON lines (.jsonl, .jsonl.gz, .jsonl.zst) or "
            "Parquet, folders that contain such files, folders saved by the Python package "
            "datasets, or OWNER/NAME of a data set on the Hugging Face Hub.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the data set to.")],
    task_type: Annotated[
        str | None, typer.Option(help="Task type for rows that have no task_type column, for example math.")
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(help="Task type to replace, as OLD=NEW, for example gsm8k=math; may be repeated."),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            help="Skip rows that cannot be read or graded and report how many. Without it, the first such "
            "row ends the import.",
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of rows to import. Without it, all rows are imported.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import rows into a data set, and print the digest that selects it in a pool's parameters.

    The columns problem_id, task_type, prompt, verification_info and solve_rate_NAME are read; others are ignored. Rows
    of type code without verification_info are read in the columns of data sets such as HumanEval and MBPP. Rows with
    the same prompt as an earlier row are skipped. The same rows always give the same digest.

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
    typer.echo(
        f"skipped: {report.duplicates} with the same prompt as an earlier row, {report.skipped} that "
        "cannot be read or graded"
    )
    for reason in report.reasons:
        typer.echo(f"  {quote(reason)}")


def tasks_check(folder: Folder, as_json: Json = False) -> None:
    """Check the hashes of a data set, read every row, and compare held-out with training questions.

    Held-out questions that share most of their text with a training question are counted, and the first of them are
    listed. Questions that differ only in numbers are counted separately, because generated questions often do.

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
    index: Annotated[
        int, typer.Argument(min=0, help="Number of the row within its split and task type, starting at 0.")
    ] = 0,
    problem_id: Annotated[
        str | None, typer.Option("--id", help="Value of problem_id to search for, used instead of the row number.")
    ] = None,
    split: Annotated[
        SplitName | None, typer.Option(help="Split that contains the row: train (the default) or held_out.")
    ] = None,
    task_type: Annotated[
        str | None, typer.Option("--type", help="Task type of the row. Required only if the data set has several.")
    ] = None,
    pool_file: Annotated[
        Path | None,
        typer.Option(
            "--pool-file",
            help="TOML file of a pool, whose environment builds the prompt. Without it, the environment "
            "has its default options.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a row of a data set: its question, the data that grades the answer, and the prompt for the model.

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
        ("asked", asked or "by a rule of the environment kind"),
    ):
        typer.echo(f"\n{title}:")
        typer.echo("\n".join(f"  {quote(line)}" for line in text.split("\n")))


def tasks_select(
    folder: Folder,
    solve_rate: Annotated[
        str, typer.Option(help="Name of the solve rate to filter by, as listed by covey tasks check.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the filtered data set to.")],
    low: Annotated[
        float, typer.Option(min=0, max=1, help="Minimum solve rate of the rows to keep, from 0 to 1.")
    ] = 0.125,
    high: Annotated[
        float, typer.Option(min=0, max=1, help="Maximum solve rate of the rows to keep, from 0 to 1.")
    ] = 0.5,
    as_json: Json = False,
) -> None:
    """Write a data set with the rows whose recorded solve rate is within a range.

    For rows without solve rates, use `covey tasks filter`, which tries them on a smaller model.

    Example: `covey tasks select tasks --solve-rate qwen_r1_distill_7b --out harder`
    """
    from covey.tasks.selecting import select_rows

    if low > high:
        raise OperatorError("bad_bounds", f"--low {low} exceeds --high {high}", fix="Swap --low and --high")
    digest, counts = select_rows(folder, out, solve_rate=solve_rate, low=low, high=high)
    if as_json:
        typer.echo(json.dumps({"digest": digest} | counts))
        return
    typer.echo(f"digest {digest}")
    typer.echo(", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in counts.items()))


def tasks_example(
    out: Annotated[Path, typer.Option(help="New file to write the rows to, as JSON lines. It must not exist.")],
    rows: Annotated[int, typer.Option(min=1, max=100_000, help="Number of rows to draw.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random choice of rows.")] = 0,
    as_json: Json = False,
) -> None:
    """Write example rows: word problems, algebra, small programs, multiple choice and short answers.

    Example: `covey tasks example --rows 2000 --out rows.jsonl`
    """
    from covey.runtime.files import write_atomically
    from covey.tasks.examples import build_rows

    if out.exists():
        raise OperatorError("file_exists", f"the output file {out} already exists", fix="Choose a new file with --out")
    examples = build_rows(rows, seed=seed)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in examples)
    try:
        write_atomically(out, text.encode())
    except OSError as error:
        raise OperatorError(
            "no_folder",
            f"{out} cannot be written: {error.strerror}",
            fix="Choose a file in a folder that you can write to",
        ) from error
    count = len(examples)
    typer.echo(json.dumps({"rows": count, "file": str(out)}) if as_json else f"{count} rows in {out}")


def _split_rename(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise OperatorError(
            "bad_rename", f"--rename {text} does not have the form OLD=NEW", fix="Write OLD=NEW, for example gsm8k=math"
        )
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
        ("characters per prompt", report.prompt_characters),
        ("bytes per row", report.row_bytes),
    ):
        typer.echo(f"{name}: median {lengths.median}, 99th percentile {lengths.p99}, maximum {lengths.largest}")
    typer.echo(f"rows without solve rates: {report.without_solve_rates}")
    for name, count in report.solve_rates.items():
        typer.echo(f"rows with the solve rate {quote(name)}: {count}")
    typer.echo(f"held-out questions that differ from a training question only in numbers: {report.same_but_numbers}")
    typer.echo(f"held-out questions that nearly equal a training question: {report.near_duplicates}")
    for pair in report.first_near_duplicates:
        typer.echo(f"  {quote(pair.held_out)} shares {pair.share:.0%} of its words with {quote(pair.train)}")
    if not report.are_all_compared:
        typer.echo("some likely pairs were not compared, so there may be more near duplicates")
