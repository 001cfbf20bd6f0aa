"""`covey trainer`: run a trainer."""

import os

import typer

from covey.console.options import ConfigFile, Sets, load_settings

trainer = typer.Typer(
    help="Run the trainer, which trains on accepted rollouts and publishes policies.", no_args_is_help=True
)


@trainer.command("run")
def trainer_run(config: ConfigFile = None, sets: Sets = None) -> None:
    """Run the trainer: train on accepted rollouts and publish each new policy.

    Example: `covey trainer run --config trainer.toml --set steps=100`
    """
    from rich.console import Console

    from trainer import app
    from trainer.config import TrainerConfig
    from trainer.monitoring.live_view import show_training

    settings = load_settings(TrainerConfig, config, sets)
    is_shown = None if os.environ.get("RANK", "0") == "0" else False  # set by torchrun: only rank 0 uses the terminal
    with show_training(Console(force_terminal=is_shown), steps=settings.steps) as sink:
        app.run(settings, sinks=[sink])
