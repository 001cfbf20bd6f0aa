"""The command `covey coordinator`, which runs the processes of a coordinator."""

import os
import signal
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Annotated

import typer

from coordinator.queue.routes import JobQueue, parse_queues
from covey.console.options import ConfigFile, Json, Sets, load_settings, show

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig

Processes = Annotated[
    int | None,
    typer.Option(help="Number of API processes, instead of the setting's. Several require PostgreSQL and Redis."),
]
Queues = Annotated[str, typer.Option(help='Queues that are served, separated by commas, for example "now,chain".')]
Separate = Annotated[bool, typer.Option("--separate", help="Serve each queue by a process of its own.")]
ALL_QUEUES = ",".join(JobQueue)
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


@coordinator.command("pages")
def coordinator_pages(config: ConfigFile = None, sets: Sets = None) -> None:
    """Serve pages for people, and lists as JSON. It reads the database only, and can run on another machine.

    Example: `covey coordinator pages --config coordinator.toml --set pages_port=8080`
    """
    from coordinator.config import CoordinatorConfig
    from coordinator.pages import app

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
def coordinator_jobs(
    config: ConfigFile = None, sets: Sets = None, queues: Queues = ALL_QUEUES, separate: Separate = False
) -> None:
    """Run the jobs: assignment and expiry (queue now), draws, judging, payment and old files (chain), epochs (bulk).

    Jobs that wait for the chain's node delay no others. `--separate` starts a process for each queue and stops them
    together. More processes of a queue can be started on any machine. They take over if one ends.

    Example: `covey coordinator jobs --config coordinator.toml --queues now,chain`
    """
    from coordinator.config import CoordinatorConfig

    chosen = parse_queues(queues)
    settings = load_settings(CoordinatorConfig, config, sets)
    if separate and len(chosen) > 1:
        from covey.runtime.child_processes import ChildProcesses
        from covey.runtime.log import configure
        from covey.runtime.prometheus import empty_shared_folder, serve_metrics, share_values

        configure("jobs", level=settings.log_level)
        empty_shared_folder(settings.jobs_metrics_folder)
        share_values(settings.jobs_metrics_folder, "parent")
        with serve_metrics(settings.jobs_metrics):
            ChildProcesses([partial(_serve_queue, settings, queue) for queue in chosen], name="jobs").run_until_signal()
        return
    from coordinator import app

    app.jobs(settings, chosen)


def _serve_queue(config: "CoordinatorConfig", queue: JobQueue) -> None:
    """Run the jobs of one queue until SIGTERM, or until the process that started this one is gone."""
    from coordinator import app  # The process that starts others does without these imports.
    from covey.runtime.child_processes import call_when_orphaned
    from covey.runtime.prometheus import share_values

    share_values(config.jobs_metrics_folder, queue)
    stop = partial(os.kill, os.getpid(), signal.SIGTERM)
    Thread(target=call_when_orphaned, args=(stop,), daemon=True).start()
    app.jobs(config.model_copy(update={"jobs_metrics_port": 0}), [queue])
