"""`covey worker cheat`: run a dishonest worker to watch it being caught."""

from typing import Annotated

import typer

from covey.console.options import ConfigFile, Sets, load_settings


def worker_cheat(
    kind: Annotated[
        str,
        typer.Argument(help="Way in which the worker cheats: quantized, best-of-n, likeliest-of-n or partial-int8."),
    ],
    config: ConfigFile = None,
    sets: Sets = None,
) -> None:
    """Run a dishonest worker, to see how it is caught.

    Example: `covey worker cheat likeliest-of-n --config worker.toml`
    """
    from covey.demo.cheats import get_cheat
    from worker import app
    from worker.config import WorkerConfig

    app.run([load_settings(WorkerConfig, config, sets)], wrap=get_cheat(kind))
