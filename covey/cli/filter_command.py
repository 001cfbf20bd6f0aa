"""`covey tasks filter`: select the tasks of a new pool that are neither too easy nor too hard."""

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covey.console.options import Datasets, Json
from covey.console.pool_file import build_params, read_document, save_model, write_document
from covey.errors import OperatorError

if TYPE_CHECKING:
    from covey.cli.task_filter import Results, SolveTrial
    from covey.environments.base import Environment
    from covey.protocol.params import GradingParams, PoolParams

tasks = typer.Typer(
    help="Import, check and filter data sets of tasks, and choose the prompts of a pool.", no_args_is_help=True
)

EngineChoice = Literal["auto", "hf", "vllm"]
Dtype = Literal["float32", "bfloat16"]


@tasks.command("filter")
def tasks_filter(
    pool_file: Annotated[
        Path,
        typer.Argument(help="TOML file of a pool that has not been created yet. Its [params] determine the prompts."),
    ],
    model: Annotated[str, typer.Option(help="Name or folder of the smaller model that generates the completions.")],
    out: Annotated[
        Path, typer.Option(help="File to write the results to, as JSON lines. An existing file is continued.")
    ],
    items: Annotated[int, typer.Option(min=1, max=100_000, help="Number of prompts to try.")] = 1000,
    pass_k: Annotated[int, typer.Option(min=1, max=1024, help="Number of completions per prompt.")] = 8,
    low: Annotated[
        float,
        typer.Option(min=0, max=1, help="Minimum share of correct completions for a prompt to be kept, from 0 to 1."),
    ] = 0.125,
    high: Annotated[
        float,
        typer.Option(min=0, max=1, help="Maximum share of correct completions for a prompt to be kept, from 0 to 1."),
    ] = 0.5,
    dataset: Datasets = None,
    seed: Annotated[
        int,
        typer.Option(
            min=0, help="Seed for sampling the completions. It does not affect the prompts, which the pool determines."
        ),
    ] = 0,
    engine: Annotated[
        EngineChoice,
        typer.Option(
            help="Inference engine: hf, vllm, or auto, which chooses vllm if it is installed and otherwise hf."
        ),
    ] = "auto",
    dtype: Annotated[
        Dtype, typer.Option(help="Data type that the engine computes in: float32 or bfloat16.")
    ] = "bfloat16",
    batch: Annotated[int, typer.Option(min=1, help="Number of completions generated in one batch.")] = 64,
    device: Annotated[str, typer.Option(help="Device of the engine, for example cuda:0.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Number of CPU threads that torch uses.")] = 1,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Write the option kept, which lists the kept prompts, into the pool file. Without it, the "
            "option is only printed.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Try the pool's prompts on a smaller model, and keep those that it sometimes gets right.

    The result is the option "kept" of the pool's environment, with one bit per prompt. Workers and validators therefore
    draw the same prompts from the pool's parameters alone. The pool file changes only with --write.

    Example: `covey tasks filter configs/pool.toml --model my-small-model --out tasks.jsonl --write`
    """
    from covey.cli.task_filter import Results, SolveTrial, choose_kept
    from covey.engines.factory import choose_engine
    from covey.environments.question_mask import pack_kept
    from covey.environments.registry import load
    from covey.model.prompts import PromptFormat
    from covey.protocol.params import VerificationParams
    from covey.tasks.catalog import DataSetCatalog

    if low > high:
        raise OperatorError("bad_bounds", f"--low {low} exceeds --high {high}", fix="Swap --low and --high")
    document = read_document(pool_file)
    params = build_params(pool_file, document, {})
    if params.environment.kind == "mixture":
        raise OperatorError(
            "bad_environment",
            f"{pool_file} uses a mixture of environments, which cannot be filtered as a whole",
            fix="Filter each environment of the mixture in its own pool file, and copy each option "
            "kept into the mixture",
        )
    trial = SolveTrial(
        kind=params.environment.kind,
        options={name: value for name, value in params.environment.options.items() if name != "kept"},
        model=model,
        engine=choose_engine(engine, VerificationParams(), role="worker"),
        dtype=dtype,
        pass_k=pass_k,
        seed=seed,
        temperature=params.model.temperature,
        max_prompt_tokens=params.model.max_prompt_tokens,
        max_completion_tokens=params.model.max_completion_tokens,
        format=PromptFormat.of(params.model),
    )
    results = Results(out, trial)
    asked = load(trial.spec, DataSetCatalog(dataset or ()))
    _ask(trial, params.grading, results, items, asked, batch=batch, device=device, threads=threads, is_quiet=as_json)
    kept = choose_kept(results.passes, count=items, pass_k=pass_k, low=low, high=high)
    if not kept:
        raise OperatorError(
            "nothing_kept",
            f"none of the {items} prompts has a share of correct completions from {low} to {high}",
            fix="Increase --items, change --low and --high, or use another model",
        )
    option = pack_kept(kept)
    _require_room(params, option)
    if write:
        environment: Any = document["params"]["environment"]
        environment.setdefault("options", {})["kept"] = option
        environment.pop("fingerprint", None)  # it belongs to the unfiltered prompts
        write_document(pool_file, document)
    counts = Counter(results.passes[number] for number in range(items))
    too_long = counts.pop(None, 0)
    by_passes = {passes: counts[passes] for passes in range(pass_k + 1)}
    if as_json:
        summary = {"items": items, "kept": len(kept), "too_long": too_long, "by_passes": by_passes, "option": option}
        typer.echo(json.dumps(summary))
        return
    typer.echo(
        f"kept {len(kept)} of {items} prompts ({len(kept) / items:.1%}); {too_long} exceed the pool's prompt limit"
    )
    typer.echo(
        "prompts by number of correct completions: "
        + ", ".join(f"{passes}: {count}" for passes, count in by_passes.items())
    )
    typer.echo(f"written to {pool_file}" if write else f'kept = "{option}"')


def _ask(
    trial: "SolveTrial",
    limits: "GradingParams",
    results: "Results",
    items: int,
    environment: "Environment",
    *,
    batch: int,
    device: str,
    threads: int,
    is_quiet: bool,
) -> None:
    """Sample completions for the prompts that have no result yet."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    from covey.cli.task_filter import count_passes, list_turns
    from covey.engines.factory import build_engine
    from covey.engines.vllm.vllm_options import VllmOptions
    from covey.environments.grader import GradingPool
    from covey.runtime.settings import SandboxSettings

    turns = list(list_turns(items, results.passes, max(1, batch // trial.pass_k)))
    if not turns:
        return
    vllm = VllmOptions().fit(trial.max_prompt_tokens + trial.max_completion_tokens)
    console = Console(stderr=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="covey-filter-")))
        engine = build_engine(trial.engine, dtype=trial.dtype, batch=batch, device=device, threads=threads, vllm=vllm)
        stack.callback(engine.close)
        engine.load_policy(save_model(trial.model, folder), 0)
        grade = stack.enter_context(GradingPool(trial.spec, environment, limits, SandboxSettings()))
        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        progress = Progress(*columns, console=console, transient=True, disable=is_quiet or not console.is_terminal)
        stack.enter_context(progress)
        bar = progress.add_task("questions", total=items, completed=items - sum(map(len, turns)))
        for numbers in turns:
            results.add(count_passes(numbers, trial, engine=engine, environment=environment, grade=grade))
            progress.advance(bar, len(numbers))


def _require_room(params: "PoolParams", option: str) -> None:
    """Raise OperatorError("too_many_questions") if the parameters are too long to be stored on chain."""
    from covey.protocol.params import MAX_PARAMS_BYTES

    environment = params.environment
    filtered = environment.model_copy(update={"options": environment.options | {"kept": option}})
    size = len(params.model_copy(update={"environment": filtered}).to_text().encode())
    if size > MAX_PARAMS_BYTES:
        raise OperatorError(
            "too_many_questions",
            f"with this many prompts the pool's parameters have {size} bytes, more than the "
            f"maximum of {MAX_PARAMS_BYTES}",
            fix="Reduce the number of prompts with --items",
        )
