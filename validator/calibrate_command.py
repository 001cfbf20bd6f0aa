"""`covey validator calibrate`: propose thresholds for a pool file, before the pool is created."""

import json
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from covey.console.options import Datasets, Json
from covey.console.pool_file import build_params, pin_model, read_document, save_model, write_document

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

    from covey.engines.base import Engine

Mode = Literal["calibrated", "exact"]
Dtype = Literal["float32", "bfloat16"]


def validator_calibrate(
    pool_file: Annotated[
        Path,
        typer.Argument(
            help="TOML file of a pool that has not been created yet. Its [params] determine what is generated."
        ),
    ],
    model: Annotated[str, typer.Option(help="Name or folder of the model that the pool starts from.")],
    dtype: Annotated[Dtype, typer.Option(help="Data type of worker and validator: float32 or bfloat16.")] = "bfloat16",
    mode: Annotated[
        Mode,
        typer.Option(help="Verification mode: calibrated or exact. exact requires replays that are bit for bit equal."),
    ] = "calibrated",
    worker_engine: Annotated[str, typer.Option(help="Inference engine of the workers: hf or vllm.")] = "hf",
    validator_engine: Annotated[str, typer.Option(help="Inference engine of the validators: hf or vllm.")] = "hf",
    worker_batch: Annotated[
        int, typer.Option(min=1, help="Maximum number of completions generated in one batch.")
    ] = 64,
    validator_batch: Annotated[
        int, typer.Option(min=1, help="Maximum number of completions replayed in one batch.")
    ] = 32,
    submissions: Annotated[
        int, typer.Option(min=4, max=100_000, help="Number of honest submissions to measure.")
    ] = 128,
    false_reject_rate: Annotated[
        float,
        typer.Option(
            min=1e-12, max=0.01, help="Probability of rejecting an honest submission, for each of the measured sums."
        ),
    ] = 1e-6,
    previous: Annotated[
        str | None, typer.Option(help="Name or folder of an earlier policy. The thresholds must reject its proofs.")
    ] = None,
    dataset: Datasets = None,
    seed: Annotated[int, typer.Option(help="Seed for the prompts and for sampling.")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="Number of CPU threads that torch uses.")] = 1,
    device: Annotated[str, typer.Option(help="Device of both engines, as torch calls it, for example cuda:0.")] = "cpu",
    write: Annotated[
        bool,
        typer.Option("--write", help="Write the thresholds into the pool file. Without it, they are only printed."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure honest submissions, propose thresholds, and test every built-in forgery against them.

    Thresholds are valid only for one model, data type, pair of engines and class of hardware, and in the exact mode
    only for one engine build. For a pool with prompt_format = "chat", the model's chat template and end tokens are
    pinned, too. The pool file changes only with --write.

    Example: `covey validator calibrate configs/pool.toml --model my-model --dtype bfloat16 --write`
    """
    from rich.console import Console
    from rich.progress import Progress

    from covey.engines.factory import build_engine
    from covey.engines.installation import describe_build, describe_hardware
    from covey.engines.vllm.vllm_options import VllmOptions
    from covey.environments import registry
    from covey.environments.base import EnvironmentSpec
    from covey.tasks.catalog import DataSetCatalog
    from validator.calibration.calibrate import calibrate

    document = read_document(pool_file)
    pinned: dict[str, Any] = {}
    builds = [describe_build(name) for name in (worker_engine, validator_engine)]
    holds_for = {
        "mode": mode,
        "worker_engine": worker_engine,
        "validator_engine": validator_engine,
        "hardware": describe_hardware(device, mode),
        "build": builds[0] if mode == "exact" else "any",
    }
    params = build_params(pool_file, document, {"model": {"compute_dtype": dtype}, "verification": holds_for})
    if params.model.prompt_format == "chat":
        params = pin_model(params, model, datasets=dataset or ())
        pinned = params.model.model_dump(mode="json", include={"chat_template_hash", "end_tokens"})
    spec = EnvironmentSpec(kind=params.environment.kind, options=params.environment.options)
    environment = registry.load(spec, DataSetCatalog(dataset or ()))
    names = [worker_engine, validator_engine, *([] if previous is None else [worker_engine])]
    whole = VllmOptions().fit(params.model.longest)
    vllm = whole.model_copy(
        update={"gpu_memory_utilization": whole.gpu_memory_utilization / max(1, names.count("vllm"))}
    )
    console = Console(stderr=True)
    with ExitStack() as stack:
        folders = Path(stack.enter_context(TemporaryDirectory(prefix="covey-calibrate-")))

        def load(name: str, batch: int, folder: Path) -> "Engine":
            engine = build_engine(name, dtype=dtype, batch=batch, device=device, threads=threads, vllm=vllm)
            stack.callback(engine.close)
            engine.load_policy(folder, 0)
            return engine

        policy = save_model(model, folders / "policy")
        earlier = None if previous is None else save_model(previous, folders / "previous")
        worker, validator = load(worker_engine, worker_batch, policy), load(validator_engine, validator_batch, policy)
        progress = Progress(console=console, transient=True, disable=as_json or not console.is_terminal)
        stack.enter_context(progress)
        bar = progress.add_task("honest submissions", total=submissions + submissions // 2)
        result = calibrate(
            params,
            environment,
            worker,
            validator,
            submissions=submissions,
            false_reject_rate=false_reject_rate,
            seed=seed,
            previous=None if earlier is None else load(worker_engine, worker_batch, earlier),
            on_progress=lambda done: progress.update(bar, completed=done),
        )
    chosen = result.verification.model_dump(mode="json", include={*holds_for, "thresholds"}, exclude_none=True)
    if write:
        _write(pool_file, document, {"compute_dtype": dtype, **pinned}, chosen)
    if as_json:
        summary = {name: getattr(result, name) for name in ("submissions", "windows", "tokens", "is_identical")}
        typer.echo(json.dumps(summary | {"forgeries": dict(result.forgeries), "verification": chosen}, indent=2))
        return
    typer.echo(f"{result.submissions} honest submissions, {result.windows} windows, {result.tokens} tokens")
    typer.echo(
        "replays are bit for bit equal: " + ("yes, so the exact mode is possible" if result.is_identical else "no")
    )
    typer.echo("rejected forgeries: " + ", ".join(f"{name} (n = {n})" for name, n in result.forgeries.items()))
    typer.echo(f"written to {pool_file}" if write else _to_toml({"compute_dtype": dtype, **pinned}, chosen))


def _write(file: Path, document: "TOMLDocument", model: dict[str, Any], chosen: dict[str, Any]) -> None:
    import tomlkit

    params: Any = document["params"]
    params.setdefault("model", tomlkit.table()).update(model)
    params.setdefault("verification", tomlkit.table()).update(chosen)
    write_document(file, document)


def _to_toml(model: dict[str, Any], chosen: dict[str, Any]) -> str:
    import tomlkit

    return tomlkit.dumps({"params": {"model": model, "verification": chosen}})
