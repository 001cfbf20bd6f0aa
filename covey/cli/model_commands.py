"""`covey model`: create the tiny model."""

from pathlib import Path
from typing import Annotated

import typer

model = typer.Typer(help="Create a tiny model for demos and tests.", no_args_is_help=True)


@model.command("tiny")
def model_tiny(
    folder: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
    seed: Annotated[int, typer.Option(help="Seed of the weights. The model shipped with Covey uses seed 1.")] = 1,
) -> None:
    """Create the demo's model: a Qwen2 with 250,000 parameters and a short supervised warm start. Takes about a minute.

    Example: `covey model tiny my-model --seed 2`
    """
    from covey.engines.hf.engine import prepare_process
    from trainer.tiny_model import warm_start_tiny

    prepare_process(threads=1)
    reward = warm_start_tiny(seed, folder, lambda step, loss: typer.echo(f"step {step:4d}  loss {loss:.3f}"))
    typer.echo(f"{folder}: mean reward {reward:.3f} on held-out prompts at temperature 1")
