"""`covey validator`: run a validator."""

import typer

from covey.console.options import ConfigFile, Sets, load_settings

validator = typer.Typer(help="Run a validator, calibrate its thresholds, and audit its verdicts.", no_args_is_help=True)


@validator.command("run")
def validator_run(config: ConfigFile = None, sets: Sets = None) -> None:
    """Run a validator: judge submissions, and report cheats to the slashing court.

    Example: `covey validator run --config validator.toml`
    """
    from validator import app
    from validator.config import ValidatorConfig

    app.run(load_settings(ValidatorConfig, config, sets))
