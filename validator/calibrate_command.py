"""`covey validator calibrate`: propose thresholds for a pool file, before the pool is created."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from covey.console.options import Datasets, Json
from covey.console.pool_file import build_params, pin_model, read_document, read_table, save_model, write_document

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

    from covey.engines.base import Engine
    from covey.engines.vllm.vllm_options import VllmOptions
    from covey.protocol.execution_contract import ExecutionContract
    from validator.calibration.calibrate import Calibration

Mode = Literal["calibrated", "exact", "both"]
Dtype = Literal["float32", "bfloat16"]
NOT_EXACT = ("not_exact", "exact_impossible")
"""Error codes after which the calibrated mode is measured, unless a mode was asked for."""


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
        Mode | None,
        typer.Option(
            help="Verification mode: calibrated, exact or both. exact requires replays that are bit for bit equal. "
            "both is the calibrated mode with this machine's execution contract, for pools of mixed cards. By default "
            "exact is tried first if both engines are vllm and the device is a GPU."
        ),
    ] = None,
    worker_engine: Annotated[
        str | None,
        typer.Option(help="Inference engine of the workers: hf or vllm. By default vllm on a GPU if it is installed."),
    ] = None,
    validator_engine: Annotated[
        str | None, typer.Option(help="Inference engine of the validators: hf or vllm. By default that of the workers.")
    ] = None,
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

    Thresholds are valid only for one model, data type, pair of engines and class of hardware. In the exact mode the
    pool file gets this machine's execution contract, and keeps contracts of other hardware. On a GPU graphs are tried
    first, and eager execution if they are not exact. For a pool with
    prompt_format = "chat", the model's chat template and end tokens are pinned, too. The pool file changes only with
    --write.

    Example: `covey validator calibrate configs/pool.toml --model my-model --dtype bfloat16 --write`
    """
    import importlib.util

    from covey.engines.installation import require_known
    from covey.errors import OperatorError

    is_gpu = not device.startswith("cpu")
    worker_engine = worker_engine or ("vllm" if is_gpu and importlib.util.find_spec("vllm") else "hf")
    validator_engine = validator_engine or worker_engine
    for name in (worker_engine, validator_engine):
        require_known(name)
    is_exact_first = is_gpu and (worker_engine, validator_engine) == ("vllm", "vllm")
    plan = MeasurementPlan(
        pool_file=pool_file,
        document=read_document(pool_file),
        model=model,
        dtype=dtype,
        engines=(worker_engine, validator_engine),
        batches=(worker_batch, validator_batch),
        submissions=submissions,
        false_reject_rate=false_reject_rate,
        previous=previous,
        datasets=tuple(dataset or ()),
        seed=seed,
        threads=threads,
        device=device,
        is_quiet=as_json,
    )
    try:
        lane = mode or ("exact" if is_exact_first else "calibrated")
        measured = measure(plan, lane)
    except OperatorError as error:
        if mode is not None or error.code not in NOT_EXACT:
            raise
        typer.echo(f"the exact mode is not possible here: {error.message}", err=True)
        measured = measure(plan, "calibrated")
    result, chosen = measured.result, measured.chosen
    if write:
        _write(pool_file, plan.document, measured.model, chosen)
    if as_json:
        summary = {name: getattr(result, name) for name in ("submissions", "windows", "tokens", "is_identical")}
        typer.echo(json.dumps(summary | {"forgeries": dict(result.forgeries), "verification": chosen}, indent=2))
        return
    typer.echo(f"{result.submissions} honest submissions, {result.windows} windows, {result.tokens} tokens")
    typer.echo(
        "replays are bit for bit equal: " + ("yes, so the exact mode is possible" if result.is_identical else "no")
    )
    typer.echo("rejected forgeries: " + ", ".join(f"{name} (n = {n})" for name, n in result.forgeries.items()))
    for contract in result.verification.contracts:
        typer.echo(f"execution contract {contract.digest}: {contract.describe()}")
    typer.echo(f"written to {pool_file}" if write else _to_toml(measured.model, chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementPlan:
    """What to measure, from the command's options."""

    pool_file: Path
    document: "TOMLDocument"
    model: str
    dtype: Dtype
    engines: tuple[str, str]
    """Engines of worker and validator."""
    batches: tuple[int, int]
    """Maximum numbers of completions per batch of worker and validator."""
    submissions: int
    false_reject_rate: float
    previous: str | None
    datasets: tuple[Path, ...]
    seed: int
    threads: int
    device: str
    is_quiet: bool
    """Whether no progress is shown."""


class Measured(NamedTuple):
    """Result of a calibration, and the values of the pool file that follow from it."""

    result: "Calibration"
    model: dict[str, Any]
    chosen: dict[str, Any]


def measure(plan: MeasurementPlan, mode: Mode) -> Measured:
    """Calibrate in one mode, or for both lanes. Raises the errors of `calibrate` and of the engines."""
    from covey.engines.vllm.vllm_options import VllmOptions

    calibrated = VllmOptions(exact=False)
    if mode == "calibrated":
        return _measure(plan, "calibrated", worker=calibrated, validator=calibrated, contracts=[])
    exact, chosen = _measure_exact(plan)
    if mode == "exact":
        return exact
    # Validators of the exact lane judge the work of the calibrated lane, too.
    limits = [
        _measure(plan, "calibrated", worker=calibrated, validator=each, contracts=exact.result.verification.contracts)
        for each in (calibrated, chosen)
    ]
    rules = limits[0].result.verification
    widest = rules.thresholds.widen(limits[1].result.verification.thresholds)
    rules = rules.model_copy(update={"thresholds": widest})
    return Measured(
        replace(limits[0].result, verification=rules),
        limits[0].model,
        {**limits[0].chosen, "thresholds": widest.model_dump(mode="json", exclude_none=True)},
    )


def _measure_exact(plan: MeasurementPlan) -> "tuple[Measured, VllmOptions]":
    """Calibrate in the exact mode, and return the options of the engines that have proven their contract.

    Modes are tried in the order of preference, with graphs first.
    """
    from covey.engines.factory import list_contracts
    from covey.engines.vllm.vllm_options import VllmOptions
    from covey.errors import OperatorError

    if set(plan.engines) != {"vllm"}:
        raise OperatorError(
            "exact_impossible",
            f"the exact mode requires the engine vllm on both sides, not {' and '.join(plan.engines)}",
            fix="Use --worker-engine vllm --validator-engine vllm, or the calibrated mode",
        )
    unset = VllmOptions(exact=True)
    known, tried = _list_contracts(plan), unset.list_exact(plan.device, plan.dtype)
    ours = list_contracts(unset, device=plan.device, dtype=plan.dtype, threads=plan.threads)
    for options, contract in zip(tried, ours, strict=True):
        contracts = [*(each for each in known if not each.is_replaced_by(contract)), contract]
        try:
            return _measure(plan, "exact", worker=options, validator=options, contracts=contracts), options
        except OperatorError as error:
            if error.code not in NOT_EXACT or options is tried[-1]:
                raise
            typer.echo(f"not exact with {options.describe_mode()}: {error.message}", err=True)
    raise AssertionError("there is at least one mode")


def _measure(
    plan: MeasurementPlan,
    mode: Literal["calibrated", "exact"],
    *,
    worker: "VllmOptions",
    validator: "VllmOptions",
    contracts: "Sequence[ExecutionContract]",
) -> Measured:
    """Calibrate with engines that have these options if they are vllm."""
    from rich.console import Console
    from rich.progress import Progress

    from covey.engines.factory import build_engine
    from covey.engines.installation import describe_hardware
    from covey.environments import registry
    from covey.environments.base import EnvironmentSpec
    from covey.tasks.catalog import DataSetCatalog
    from validator.calibration.calibrate import calibrate

    holds_for = {
        "mode": mode,
        "worker_engine": plan.engines[0],
        "validator_engine": plan.engines[1],
        "hardware": "any" if mode == "exact" else describe_hardware(plan.device),
        "contracts": [each.model_dump() for each in contracts],
    }
    pinned: dict[str, Any] = {}
    changes: dict[str, dict[str, Any]] = {"model": {"compute_dtype": plan.dtype}, "verification": holds_for}
    params = build_params(plan.pool_file, plan.document, changes)
    if params.model.prompt_format == "chat":
        params = pin_model(params, plan.model, datasets=plan.datasets)
        pinned = params.model.model_dump(mode="json", include={"chat_template_hash", "end_tokens"})
    spec = EnvironmentSpec(kind=params.environment.kind, options=params.environment.options)
    environment = registry.load(spec, DataSetCatalog(plan.datasets))
    names = [*plan.engines, *([] if plan.previous is None else [plan.engines[0]])]
    share = worker.gpu_memory_utilization / max(1, names.count("vllm"))
    console = Console(stderr=True)
    with ExitStack() as stack:
        folders = Path(stack.enter_context(TemporaryDirectory(prefix="covey-calibrate-")))

        def load(name: str, options: "VllmOptions", batch: int, folder: Path) -> "Engine":
            vllm = options.fit(params.model.longest).model_copy(update={"gpu_memory_utilization": share})
            engine = build_engine(
                name, dtype=plan.dtype, batch=batch, device=plan.device, threads=plan.threads, vllm=vllm
            )
            stack.callback(engine.close)
            engine.load_policy(folder, 0)
            return engine

        policy = save_model(plan.model, folders / "policy")
        earlier = None if plan.previous is None else save_model(plan.previous, folders / "previous")
        sides = zip(plan.engines, (worker, validator), plan.batches, strict=True)
        generating, replaying = (load(name, options, batch, policy) for name, options, batch in sides)
        progress = Progress(console=console, transient=True, disable=plan.is_quiet or not console.is_terminal)
        stack.enter_context(progress)
        bar = progress.add_task("honest submissions", total=plan.submissions + plan.submissions // 2)
        result = calibrate(
            params,
            environment,
            generating,
            replaying,
            submissions=plan.submissions,
            false_reject_rate=plan.false_reject_rate,
            seed=plan.seed,
            previous=None if earlier is None else load(plan.engines[0], worker, plan.batches[0], earlier),
            on_progress=lambda done: progress.update(bar, completed=done),
        )
    chosen = result.verification.model_dump(mode="json", include={*holds_for, "thresholds"}, exclude_none=True)
    return Measured(result, {"compute_dtype": plan.dtype, **pinned}, chosen)


def _list_contracts(plan: MeasurementPlan) -> "list[ExecutionContract]":
    """Return the contracts that the pool file lists already."""
    from pydantic import TypeAdapter, ValidationError

    from covey.errors import OperatorError
    from covey.protocol.execution_contract import ExecutionContract

    values = read_table(plan.pool_file, plan.document, "params").get("verification", {}).get("contracts", [])
    try:
        return TypeAdapter(list[ExecutionContract]).validate_python(values)
    except ValidationError as error:
        raise OperatorError(
            "bad_pool_file",
            f"verification.contracts of {plan.pool_file} is wrong: {error}",
            fix=f"Correct {plan.pool_file}",
        ) from error


def _write(file: Path, document: "TOMLDocument", model: dict[str, Any], chosen: dict[str, Any]) -> None:
    import tomlkit

    params: Any = document["params"]
    params.setdefault("model", tomlkit.table()).update(model)
    params.setdefault("verification", tomlkit.table()).update(chosen)
    write_document(file, document)


def _to_toml(model: dict[str, Any], chosen: dict[str, Any]) -> str:
    import tomlkit

    return tomlkit.dumps({"params": {"model": model, "verification": chosen}})
