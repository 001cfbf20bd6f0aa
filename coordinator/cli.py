"""`covey coordinator`: run the processes of a coordinator."""

from typing import Annotated

import typer

from covey.console.options import ConfigFile, Json, Sets, load_settings, show

Processes = Annotated[
    int | None,
    typer.Option(help="Number of API processes, instead of the setting's. Several require PostgreSQL and Redis."),
]
coordinator = typer.Typer(help="Run a pool's coordinator.", no_args_is_help=True)


@coordinator.command("serve")
def coordinator_serve(config: ConfigFile = None, sets: Sets = None, processes: Processes = None) -> None:
    """Run the API, and follow the chain.

    Example: `covey coordinator serve --config coordinator.toml --processes 4`
    """
    from coordinator import app
    from coordinator.config import CoordinatorConfig

    sets = [*(sets or ()), *([] if processes is None else [f"processes={processes}"])]
    app.serve(load_settings(CoordinatorConfig, config, sets))


@coordinator.command("migrate")
def coordinator_migrate(config: ConfigFile = None, sets: Sets = None, as_json: Json = False) -> None:
    """Bring the database up to date after an upgrade of Covey. Stop all processes of the coordinator first.

    Example: `covey coordinator migrate --config coordinator.toml`
    """
    from contextlib import closing

    from coordinator.config import CoordinatorConfig
    from coordinator.db.database import Database

    with closing(Database(load_settings(CoordinatorConfig, config, sets).database)) as database:
        show({"changed": database.migrate()}, as_json)


@coordinator.command("restored")
def coordinator_restored(config: ConfigFile = None, sets: Sets = None, as_json: Json = False) -> None:
    """Prepare a database that was restored from a backup. Run it once, before `serve` and `jobs` are started.

    It ends all leases, and leaves a gap for tasks and leases that came after the backup. Epochs that were posted since
    then come back from their files when `serve` reads the chain.

    Example: `covey coordinator restored --config coordinator.toml`
    """
    from contextlib import closing

    from coordinator.config import CoordinatorConfig
    from coordinator.db.database import Database
    from coordinator.domain import restoring

    settings = load_settings(CoordinatorConfig, config, sets)
    with closing(Database(settings.database)) as database:
        database.prepare()
        with database.write() as rows:
            lease = restoring.jump(rows)
    show({"next_lease": lease}, as_json)


@coordinator.command("jobs")
def coordinator_jobs(config: ConfigFile = None, sets: Sets = None) -> None:
    """Run the jobs process: assignment, leases, validation, settlement.

    Example: `covey coordinator jobs --config coordinator.toml`
    """
    from coordinator import app
    from coordinator.config import CoordinatorConfig

    app.jobs(load_settings(CoordinatorConfig, config, sets))
