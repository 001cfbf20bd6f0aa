"""`covey coordinator`: run the processes of a coordinator."""

import typer

from covey.console.options import ConfigFile, Sets, load_settings

coordinator = typer.Typer(help="Run a pool's coordinator.", no_args_is_help=True)


@coordinator.command("serve")
def coordinator_serve(config: ConfigFile = None, sets: Sets = None) -> None:
    """Run the API, and follow the chain.

    Example: `covey coordinator serve --config coordinator.toml`
    """
    from coordinator import app
    from coordinator.config import CoordinatorConfig

    app.serve(load_settings(CoordinatorConfig, config, sets))


@coordinator.command("jobs")
def coordinator_jobs(config: ConfigFile = None, sets: Sets = None) -> None:
    """Run the jobs process: assignment, leases, validation, settlement.

    Example: `covey coordinator jobs --config coordinator.toml`
    """
    from coordinator import app
    from coordinator.config import CoordinatorConfig

    app.jobs(load_settings(CoordinatorConfig, config, sets))
