"""`covey demo`: the whole network on this machine."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from covey.errors import OperatorError


def demo(
    context: typer.Context,
    environment: Annotated[
        str,
        typer.Option(help="Task to train on: math, code, mixture or reasoning_gym:chain_sum."),
    ] = "reasoning_gym:spell_backward",
    steps: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Number of policies to train. By default 24, or fewer for slow tasks."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Number of honest workers.")] = 2,
    cheats: Annotated[
        int,
        typer.Option(min=0, max=16, help="Number of dishonest workers, which take turns at three kinds of cheating."),
    ] = 2,
    max_staleness: Annotated[
        int,
        typer.Option(
            min=0,
            max=8,
            help="Maximum staleness: number of steps by which the policy that generated a rollout may "
            "be older than the policy being trained.",
        ),
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed for all keys and random choices.")] = 0,
    engine: Annotated[str, typer.Option(help="Inference engine of the workers: hf or vllm.")] = "hf",
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="File to write the JSON summary to. Without it, no summary is written."),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="After the last step, keep the pool running until Ctrl-C, and print how to join it."
        ),
    ] = False,
) -> None:
    """Run a complete network on this machine: chain, coordinator, trainer, workers, cheats and validators.

    The exit code is 0 only if the model learned, every cheat was slashed, no honest worker was slashed, and all work
    was paid for.

    The first run of each task except the default creates a model for it, in about a minute, and keeps it in
    ~/.cache/covey.

    Example: `covey demo --environment math --steps 8 --workers 3 --cheats 1`
    """
    from covey.demo.participants import DemoOptions
    from covey.demo.presets import find_preset
    from covey.demo.scenario import run_demo
    from covey.runtime.files import write_atomically

    if json_file is not None and not json_file.resolve().parent.is_dir():
        raise OperatorError(
            "no_folder",
            f"the folder that should contain {json_file} does not exist",
            fix="Choose a file in an existing folder",
        )
    options = DemoOptions(
        environment=environment,
        steps=steps or find_preset(environment).steps,
        workers=workers,
        cheats=cheats,
        max_staleness=max_staleness,
        seed=seed,
        engine=engine,
        keep=keep,
    )

    def write(summary: dict[str, Any]) -> None:
        if json_file is not None:
            write_atomically(json_file, json.dumps(summary, indent=2, sort_keys=True).encode() + b"\n")

    root = context.find_root().command
    if run_demo(options, lambda arguments: root.main(arguments, standalone_mode=False), on_summary=write):
        raise typer.Exit(1)
