"""`covey train`: train a model on this machine, without a chain."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.console.options import Sets, read_sets
from covey.console.terminal import quote
from covey.errors import OperatorError


def train(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="TOML file with the settings; covey config show train lists them.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to train: a folder or a name on the Hugging Face Hub.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Rows of the questions, as covey tasks import reads them, or a data set that it has written."
        ),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(help="Environment: a kind such as math, reasoning_gym:GENERATOR, or mixture."),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:FUNCTION",
            help="Python function that grades, with the arguments (completion, row). It replaces --environment.",
        ),
    ] = None,
    from_pool: Annotated[
        str | None,
        typer.Option(
            help="URL of a pool's coordinator. The run starts from the pool's newest policy, with its questions, "
            "lengths and sizes. --model names another model."
        ),
    ] = None,
    from_step: Annotated[
        int | None,
        typer.Option(min=0, help="Step of the pool's policy to start from. By default the newest."),
    ] = None,
    rpc: Annotated[
        str | None,
        typer.Option(
            envvar="COVEY_RPC_URL",
            help="RPC URL of a node. The hash of the pool's policy is then also compared with the one on chain.",
        ),
    ] = None,
    repeat: Annotated[
        Path | None,
        typer.Option(help="Manifest of a run, or its folder, to run again with the same settings and seeds."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run. An existing run in it is resumed. By default run.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps to train.")] = None,
    sets: Sets = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and show what was chosen, but do not train.")
    ] = False,
) -> None:
    """Train a model on this machine: generator, grader and learner, without a chain, a coordinator or keys.

    The run's folder has checkpoints, policies (folders for from_pretrained), metrics.jsonl and samples of rollouts. The
    same command resumes it after an interruption. Options override --set, the environment and the file. --repeat
    ignores the environment, and warns of packages and hardware that differ.

    Example: `covey train --model Qwen/Qwen2.5-0.5B-Instruct --dataset rows.jsonl --environment math --out my-run`
    """
    from rich.console import Console

    from covey.standalone.config import TrainConfig
    from covey.standalone.manifest import list_differences, list_values, read_manifest, require_same_data
    from covey.standalone.pool_exchange import follow_pool
    from covey.standalone.preparation import DATA_SET, prepare
    from covey.standalone.run import follow_rank, run
    from trainer.monitoring.live_view import show_training

    repeated, values = None, dict[str, Any]()
    if repeat is not None:
        if file is not None or out is None:
            raise OperatorError(
                "bad_repeat",
                "--repeat takes its settings from the manifest and requires a folder of its own",
                fix="Remove the file with settings, and name a new folder with --out",
            )
        repeated = read_manifest(repeat)
        values = list_values(repeated, (repeat if repeat.is_dir() else repeat.parent) / DATA_SET)
        from_pool = from_pool or repeated.from_pool
    if from_pool is None:
        _refuse_pool_options(context)
    values |= read_sets(sets)
    named = {
        "model.path": model,
        "data.dataset": dataset,
        "data.environment": environment,
        "data.reward": reward,
        "home": None if out is None else str(out),
        "steps": steps,
    }
    values |= {name: value for name, value in named.items() if value is not None}
    config, questions = TrainConfig.load(file, values), None
    if os.environ.get("RANK", "0") != "0":  # set by torchrun
        follow_rank(config)
        return
    with tempfile.TemporaryDirectory(prefix="covey-train-") as scratch:
        config = config.model_copy(update={"home": Path(scratch)}) if dry_run else config
        if from_pool is not None:
            config, questions = follow_pool(config, from_pool, step=from_step, rpc_url=rpc)
            typer.echo(f"the run starts from {config.model.path}", err=True)
        plan = prepare(config, questions=questions, say=lambda line: typer.echo(line, err=True))
    if repeated is not None:
        require_same_data(repeated, plan.manifest)
        for difference in (*repeated.changes, *list_differences(repeated, plan.manifest)):
            typer.echo(f"differs from the repeated run: {quote(difference)}", err=True)
        plan = replace(plan, repeated=repeated)
    if dry_run:
        typer.echo(f"would train {config.steps} steps on {plan.config.device} with the engine {plan.engine}")
        typer.echo(plan.params.model_dump_json(indent=2))
        return
    with show_training(Console(), steps=config.steps, advances_at="update") as sink:
        step = run(plan, sinks=[sink])
    if step < config.steps:
        typer.echo(f"stopped after step {step} of {config.steps}; the same command continues", err=True)
        raise typer.Exit(130)


def _refuse_pool_options(context: typer.Context) -> None:
    """Raise OperatorError("bad_settings") if the command line has an option that means nothing without --from-pool."""
    for name in ("from_step", "rpc"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = f"--{name.replace('_', '-')}"
            raise OperatorError(
                "bad_settings",
                f"{option} is set, but the run does not start from a pool",
                fix=f"Name the pool with --from-pool, or remove {option}",
            )
