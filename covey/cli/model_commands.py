"""`covey model`: create the tiny model."""

from pathlib import Path
from typing import Annotated

import typer

model = typer.Typer(help="Make the demo's model.", no_args_is_help=True)


@model.command("tiny")
def model_tiny(
    folder: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Seed that determines the weights; the shipped model has 1.")] = 1,
) -> None:
    """Make the demo's model: a warm-started Qwen2 of a quarter million parameters, in about a minute.

    Example: `covey model tiny my-model --seed 2`
    """
    from covey.engines.hf.engine import prepare_process
    from trainer.tiny_model import warm_start_tiny

    prepare_process(threads=1)
    reward = warm_start_tiny(seed, folder, lambda step, loss: typer.echo(f"step {step:4d}  loss {loss:.3f}"))
    typer.echo(f"{folder}: mean reward {reward:.3f} on held-out prompts at temperature 1")
