"""`covey rollouts show`: completions of a step as text, of a run on one machine or of a pool's trainer."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from covey.console.options import Json
from covey.errors import OperatorError

if TYPE_CHECKING:
    from rich.text import Text

    from trainer.monitoring.rollout_files import RolloutFiles, RolloutLine

rollouts = typer.Typer(help="Read what the model wrote.", no_args_is_help=True)


@rollouts.command("show")
def rollouts_show(
    folder: Annotated[Path, typer.Argument(help="Folder of covey train, of a trainer, or of covey init pool.")],
    step: Annotated[int | None, typer.Option(min=0, help="Step to show. By default the newest.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Maximum number of completions to show.")] = 8,
    as_json: Json = False,
) -> None:
    """Show completions of a step: question, completion with the thinking dimmed, reward and its parts.

    Example: `covey rollouts show my-run --step 40 --count 2`
    """
    from rich.console import Console

    from covey.protocol.ids import Step

    files = _find_files(folder)
    steps = files.list_steps()
    chosen = Step(step) if step is not None else steps[-1] if steps else Step(0)
    lines = list(files.read(chosen))[:count]
    if as_json:
        typer.echo(json.dumps({"rollouts": [asdict(line) for line in lines]}))
        return
    console = Console()
    for line in lines:
        console.print(*_describe(line), sep="\n", soft_wrap=True)


def _find_files(folder: Path) -> "RolloutFiles":
    from trainer.monitoring.rollout_files import FOLDER, RolloutFiles

    for home in (folder, folder / "trainer"):
        if (home / FOLDER).is_dir():
            return RolloutFiles(home / FOLDER)
    raise OperatorError(
        "no_rollouts",
        f"neither {folder} nor {folder / 'trainer'} has a folder {FOLDER}",
        fix="Use the folder of a run that has trained at least one step",
    )


def _describe(line: "RolloutLine") -> "Iterator[Text]":
    from rich.text import Text

    color = "green" if line.advantage > 0 else "red" if line.advantage < 0 else "yellow"
    parts = f" (length {line.length_penalty:+.3f})" if line.length_penalty else ""
    cut = "" if line.finished else ", cut at the token limit"
    yield Text(f"-- step {line.step}, policy {line.policy}, task {line.task}.{line.group}.{line.sibling}", style="bold")
    yield Text(_make_printable(line.question), style="cyan")
    yield _dim_thinking(_make_printable(line.completion))
    yield Text(
        f"reward {line.reward:.3f}{parts}, advantage {line.advantage:+.3f}, {line.tokens} tokens{cut}\n", style=color
    )


def _make_printable(text: str) -> str:
    """Return untrusted text without control characters. Line ends and tabs are kept."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _dim_thinking(text: str) -> "Text":
    from rich.text import Text

    from covey.environments.answer_extraction import THINK_TAGS

    head, tag, answer = text.rpartition(THINK_TAGS[1])
    if not tag:
        is_open = THINK_TAGS[0] in text
        return Text(text, style="dim" if is_open else "")
    return Text.assemble((head + tag, "dim"), answer)
