"""Commands that run a role until a stop signal."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.runtime.settings import Settings

SettingsType = TypeVar("SettingsType", bound="Settings")

coordinator = typer.Typer(help="Run a pool's coordinator.", no_args_is_help=True)
worker = typer.Typer(help="Run a worker, which generates rollouts, and register its node.", no_args_is_help=True)
validator = typer.Typer(
    help="Run a validator, which checks rollouts, and calibrate or repeat its checks.", no_args_is_help=True
)
trainer = typer.Typer(help="Run a trainer, which learns and publishes policies.", no_args_is_help=True)
origin = typer.Typer(help="Serve the trainer's policies.", no_args_is_help=True)
relay = typer.Typer(help="Mirror the policies of an origin.", no_args_is_help=True)

ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with the role's settings.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Setting as NAME=VALUE, which wins over file and environment; may be repeated."),
]

Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]


def load_settings(kind: type[SettingsType], file: Path | None, sets: list[str] | None) -> SettingsType:
    """Settings from file, environment (COVEY_NAME) and --set, in this order."""
    values: dict[str, str] = {}
    for item in sets or []:
        name, equals, value = item.partition("=")
        if not equals:
            raise OperatorError("bad_settings", f"--set {item} has no value", fix="Write --set NAME=VALUE")
        values[name] = value
    return kind.load(file, values)


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


@worker.command("run")
def worker_run(
    engine: Annotated[
        str | None, typer.Option(help="Inference engine: auto, hf or vllm; wins over the setting `engine`.")
    ] = None,
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Run a worker: claim, generate, prove, submit.

    Example: `covey worker run --config worker.toml --engine vllm`
    """
    from worker import app
    from worker.config import WorkerConfig

    chosen = [] if engine is None else [f"engine={engine}"]
    app.run(load_settings(WorkerConfig, config, [*(sets or []), *chosen]))


@worker.command("cheat", hidden=True)
def worker_cheat(
    kind: Annotated[str, typer.Argument(help="Kind of cheat: quantized, best-of-n or likeliest-of-n.")],
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Run a dishonest worker, to watch it being caught.

    Example: `covey worker cheat likeliest-of-n --config worker.toml`
    """
    from covey.demo.cheats import get_cheat
    from worker import app
    from worker.config import WorkerConfig

    app.run(load_settings(WorkerConfig, config, sets), wrap=get_cheat(kind))


@validator.command("run")
def validator_run(config: ConfigFile = None, sets: Sets = None) -> None:
    """Judge submissions and bring cheats to the slashing court.

    Example: `covey validator run --config validator.toml`
    """
    from validator import app
    from validator.config import ValidatorConfig

    app.run(load_settings(ValidatorConfig, config, sets))


@trainer.command("run")
def trainer_run(config: ConfigFile = None, sets: Sets = None) -> None:
    """Learn from accepted rollouts and publish each new policy.

    Example: `covey trainer run --config trainer.toml --set steps=100`
    """
    from rich.console import Console

    from covey.cli.training import show_training
    from trainer import app
    from trainer.config import TrainerConfig

    settings = load_settings(TrainerConfig, config, sets)
    is_shown = None if os.environ.get("RANK", "0") == "0" else False  # torchrun's: one process of all has the terminal
    with show_training(Console(force_terminal=is_shown), steps=settings.steps) as sink:
        app.run(settings, sinks=[sink])


@origin.command("run")
def origin_run(
    root: Annotated[Path, typer.Option(help="Folder that the trainer publishes into.")],
    host: Host = "127.0.0.1",
    port: Port = 9000,
) -> None:
    """Serve the trainer's policies.

    Example: `covey origin run --root policies --port 9000`
    """
    from covey.shardcast import app

    app.run(root=root, host=host, port=port)


@relay.command("run")
def relay_run(
    root: Annotated[Path, typer.Option(help="Folder of this relay's copies.")],
    upstream: Annotated[str, typer.Option(help="Base URL of the origin or another relay.")],
    host: Host = "127.0.0.1",
    port: Port = 9001,
    keep_policies: Annotated[
        int, typer.Option(min=1, help="Newest policies that stay here; an older one is fetched when it is asked for.")
    ] = 5,
    keep_datasets: Annotated[
        int, typer.Option(min=1, help="Data sets that stay here: those that were fetched last.")
    ] = 16,
) -> None:
    """Mirror an origin: fetch on demand, check every shard, serve.

    Example: `covey relay run --root copies --upstream http://127.0.0.1:9000 --port 9001`
    """
    from covey.shardcast import app

    app.run(root=root, host=host, port=port, upstream=upstream, keep=keep_policies, keep_datasets=keep_datasets)
