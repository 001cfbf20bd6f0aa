"""`covey eval`: score models on benchmarks and environments, with intervals."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from covey.console.options import Json

EvalFormat = Literal["gsm8k", "math", "aime", "livecodebench", "choice", "hle", "covey"]
EvalEngine = Literal["auto", "hf", "vllm"]
EvalDtype = Literal["auto", "float32", "bfloat16"]


def evaluate_models(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL",
            help="Folder of a model, of a policy such as exports/40, or of a training run, whose newest policy "
            "is evaluated. A name on a model hub is downloaded. Several models are compared.",
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|KIND|CONFIG",
            help="Questions: a file of rows (.jsonl, .parquet), an environment kind or generator such as "
            "spell_backward, or a TOML file such as configs/evaluations/gsm8k.toml. By default the held-out questions "
            "of the first MODEL, which then is a run of covey train.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for samples, results and report. An interrupted evaluation in it is continued. By default "
            "eval-NAME, where NAME is that of the tasks."
        ),
    ] = None,
    format: Annotated[
        EvalFormat | None, typer.Option("--format", help="Layout of the rows. By default that of the first row.")
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of questions. By default all rows of a file, or 200 of a kind."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="First contest date of LiveCodeBench, for example 2024-08-01.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Last contest date of LiveCodeBench, for example 2025-02-01.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Number of completions of each question. By default 1.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature, 0 for the most likely token. By default 0.6.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens of a completion. By default 2048.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all completions. By default 0.")] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="Step of the policy of a training run. By default its newest.")
    ] = None,
    dataset: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a data set from which the environment draws its questions; may be repeated."),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Skip rows that cannot be read or graded, and report how many."),
    ] = False,
    engine: Annotated[
        EvalEngine | None,
        typer.Option(help="Inference engine: hf, vllm, or auto, which chooses vllm if it is installed."),
    ] = None,
    dtype: Annotated[
        EvalDtype | None,
        typer.Option(help="Data type that the engine computes in. By default float32 on a CPU, bfloat16 elsewhere."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Number of completions generated together. By default 64.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device of the engine, for example cuda:0. By default a GPU if there is one.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of CPU threads that torch uses. By default 1.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score models on questions, with 95 percent intervals, and compare them on the same questions.

    Options override the values of a TOML file. Repeat the same command to continue an interrupted evaluation: it gives
    the same numbers. The folder --out gets samples.jsonl, results.json and report.html, a page to read offline.

    Example: `covey eval my-model --tasks configs/evaluations/gsm8k.toml --out gsm8k`, or `covey eval my-run`
    """
    from covey.cli.eval_output import show_progress, show_results
    from covey.evaluation.evaluate import REPORT_NAME, evaluate
    from covey.evaluation.evaluated_policies import find_policies
    from covey.evaluation.evaluation_config import choose_config
    from covey.evaluation.evaluation_page import describe_tasks
    from covey.standalone.run_questions import ask_as_run
    from covey.tasks.catalog import DataSetCatalog

    changes: dict[str, dict[str, Any]] = {
        "tasks": {"format": format, "items": items, "since": since, "until": until},
        "sampling": {"samples": samples, "temperature": temperature, "max_tokens": max_tokens, "seed": seed},
        "engine": {"name": engine, "dtype": dtype, "batch": batch, "device": device, "threads": threads},
    }
    policies, own = find_policies(models, step), list[Path]()
    if tasks is None:
        config, own = ask_as_run(models[0], changes)
    else:
        config = choose_config(tasks, changes)
    folder = out or Path(f"eval-{describe_tasks(config).partition('.')[0]}")
    with DataSetCatalog([*(dataset or ()), *own]) as data_sets, show_progress(folder, is_quiet=as_json) as observer:
        results = evaluate(policies, config, folder, observer, data_sets=data_sets, is_lenient=skip_bad)
    if as_json:
        typer.echo(json.dumps(results.to_json(), allow_nan=False))
        return
    show_results(results, config)
    typer.echo(f"report: {folder / REPORT_NAME}")
