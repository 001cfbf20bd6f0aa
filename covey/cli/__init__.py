"""The one command.  `main` is the entry point; every group lives in a module of its own and imports late, so that
`covey --help` answers at once.
"""

import sys
from typing import Annotated

import typer

from covey.cli import (
    audit,
    calibration,
    chain,
    config,
    datasets,
    doctor,
    join,
    local,
    offices,
    opening,
    policy,
    rewards,
    roles,
    setup,
    submissions,
    tasks,
    tools,
)
from covey.cli.terminal import quote
from covey.errors import CoveyError

app = typer.Typer(
    name="covey",
    help="Train language models by reinforcement learning on computers whose owners nobody has to trust.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version

        typer.echo(f"covey {version('covey')}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train language models by reinforcement learning on computers whose owners nobody has to trust."""


app.add_typer(tools.devnet, name="devnet")
app.add_typer(tools.wallet, name="wallet")
app.add_typer(tools.model, name="model")
app.add_typer(chain.pool, name="pool")
chain.pool.command("open")(opening.pool_open)
app.add_typer(tasks.tasks, name="tasks")
tasks.tasks.command("import")(datasets.tasks_import)
tasks.tasks.command("check")(datasets.tasks_check)
tasks.tasks.command("show")(datasets.tasks_show)
tasks.tasks.command("select")(datasets.tasks_select)
tasks.tasks.command("example")(datasets.tasks_example)
app.add_typer(chain.stake, name="stake")
app.add_typer(rewards.rewards, name="rewards")
app.add_typer(submissions.submissions, name="submissions")
app.add_typer(policy.policy, name="policy")
app.add_typer(offices.epoch, name="epoch")
app.add_typer(offices.case, name="case")
app.add_typer(roles.coordinator, name="coordinator")
app.add_typer(roles.worker, name="worker")
app.add_typer(roles.validator, name="validator")
app.add_typer(roles.trainer, name="trainer")
app.add_typer(roles.origin, name="origin")
app.add_typer(roles.relay, name="relay")
roles.validator.command("audit")(audit.validator_audit)
roles.validator.command("calibrate")(calibration.validator_calibrate)
app.add_typer(config.config, name="config")
app.add_typer(setup.init, name="init")
app.command("up")(local.up)
app.command("down")(local.down)
app.command("join")(join.join)
app.command("deploy")(setup.deploy)
app.command("demo")(tools.demo)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Run a command; an error of ours is one line with its code, and exit 1."""
    try:
        app()
    except CoveyError as error:
        sys.stderr.write(f"covey: {quote(str(error))}\n")
        sys.exit(1)
