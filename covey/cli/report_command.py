"""`covey report`: one HTML file with curves, completions and settings of a run or of a pool's trainer."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.errors import OperatorError

if TYPE_CHECKING:
    from trainer.monitoring.run_page import SampledStep, SettingsTable

UNSHOWN = ("rpc_url", "key_file")
"""Settings of a trainer that a report does not show, because an URL can contain a key."""


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of covey train, of a trainer, or of covey init pool.")],
    out: Annotated[Path, typer.Option(help="HTML file to write. An existing file is replaced.")] = Path("report.html"),
    samples: Annotated[int, typer.Option(min=0, help="Maximum number of completions per shown step.")] = 8,
) -> None:
    """Write a report that any browser shows offline: curves, alarms, completions of two steps, and settings.

    The report also works while the run goes on. It contains paths of this machine, and no keys.

    Example: `covey report my-run --out report.html`
    """
    from covey.runtime.files import write_atomically
    from covey.runtime.full_disk import ExplainFullDisk
    from trainer.monitoring.run_history import read_history
    from trainer.monitoring.run_page import build_run_page

    home = _find_home(folder)
    problems: list[str] = []
    steps, settings = _read_samples(home, samples, problems), _read_settings(home, problems)
    page = build_run_page(
        f"Run {home.absolute().name}" if home == folder else f"Pool {folder.absolute().name}",
        read_history(home),
        steps,
        settings,
        problems=problems,
        tags=_find_tags(home),
    )
    with ExplainFullDisk(out.absolute().parent, out.name):
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, page.encode())
    typer.echo(f"wrote {out}")


def _find_home(folder: Path) -> Path:
    from trainer.monitoring.run_history import METRICS_FILE

    for home in (folder, folder / "trainer"):
        if (home / METRICS_FILE).is_file():
            return home
    raise OperatorError(
        "no_metrics",
        f"neither {folder} nor {folder / 'trainer'} has a file {METRICS_FILE}",
        fix="Use the folder of a run or a pool whose trainer has started",
    )


def _read_samples(home: Path, count: int, problems: list[str]) -> "list[SampledStep]":
    """Return completions of the newest step and of the first one."""
    from trainer.monitoring.run_history import list_sample_steps, read_samples
    from trainer.monitoring.run_page import SampledStep

    steps = list_sample_steps(home) if count else []
    found = []
    for step in dict.fromkeys([*steps[-1:], *steps[:1]]):
        lines, wrong = read_samples(home, step, count)
        problems += wrong
        found.append(SampledStep(step=step, lines=lines))
    return found


def _read_settings(home: Path, problems: list[str]) -> "list[SettingsTable]":
    """Return the settings of a run from its manifest, and those of a pool from its folder."""
    from covey.standalone.manifest import FILE, read_manifest
    from covey.standalone.run_settings import describe_manifest
    from trainer.monitoring.run_page import SettingsTable

    pool = next((each for each in (home.absolute().parent, home) if (each / "trainer.toml").exists()), None)
    tables = list[SettingsTable]()
    try:
        tables += describe_manifest(read_manifest(home)) if (home / FILE).exists() else []
        tables += _describe_pool(pool) if pool is not None else []
    except OperatorError as error:
        problems.append(f"The settings cannot be shown: {error.message}.")
    return tables


def _describe_pool(pool: Path) -> "Iterator[SettingsTable]":
    from covey.cli.config import list_settings
    from covey.standalone.run_settings import list_rows, spell
    from trainer.monitoring.run_page import SettingsTable

    settings = [each for each in list_settings("trainer", pool / "trainer.toml", []) if each.name not in UNSHOWN]
    rows = [(each.name, spell(each.value)) for each in settings]
    yield SettingsTable(title="Settings of the trainer", rows=rows)
    file = pool / "pool.toml"
    if file.exists():
        try:
            terms = tomllib.loads(file.read_text())
        except ValueError as error:  # also a file that is not UTF-8
            raise OperatorError("bad_settings", f"{file} is not valid TOML", fix="Correct the file") from error
        yield SettingsTable(title="Terms and parameters of the pool", rows=list_rows(terms))


def _find_tags(home: Path) -> tuple[str, str]:
    """Return the tags of the thinking part, which the run's environment may name."""
    from covey.standalone.run_settings import find_thinking_tags

    try:
        params = json.loads((home / "params.json").read_bytes())
    except (OSError, ValueError):  # a pool's trainer, or a damaged file
        params = None
    return find_thinking_tags(params.get("params") if isinstance(params, dict) else None)
