"""Selects, checks and builds the engine for a role's settings. Engine libraries are imported late."""

import importlib.util
import math
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol, get_args

from covey.engines.base import Engine
from covey.engines.installation import describe_build, describe_hardware, list_versions, require_known
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError
from covey.protocol.params import EngineName, PoolParams, VerificationParams

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


def open_engine(
    settings: EngineSettings, params: PoolParams, *, role: Role, call_seconds: float = math.inf
) -> tuple[str, Engine]:
    """Return the name of a role's engine, and the engine without a policy. The caller closes it.

    `call_seconds` is an upper limit in seconds for the setting with this name. Raises the errors of `require_engine`
    and `VllmOptions.fit`.
    """
    interpreter = settings.vllm.interpreter
    name = choose_engine(settings.engine, params.verification, role=role, interpreter=interpreter)
    require_engine(name, params.verification, role=role, device=settings.device, interpreter=interpreter)
    vllm = settings.vllm.fit(params.model.longest)
    return name, build_engine(
        name,
        dtype=params.model.compute_dtype,
        batch=settings.batch,
        device=settings.device,
        threads=settings.threads,
        vllm=vllm.model_copy(update={"call_seconds": min(vllm.call_seconds, call_seconds)}),
    )


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
    device: str,
    interpreter: Path | None = None,
    is_apart: bool = False,
) -> None:
    """Check that the pool's thresholds are valid for this engine in this role, on this hardware and build.

    With `is_apart`, a separate process imports torch, because torch would take GPU memory in this one. Raises
    OperatorError("wrong_engine"), OperatorError("wrong_hardware") or OperatorError("wrong_build") if they are not
    valid. "wrong_build" is also raised if `interpreter` has a different version of Covey. Raises
    OperatorError("bad_device") if the pool specifies hardware and torch cannot use the device.
    """
    other_python = interpreter if name == "vllm" else None
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
    if rules.hardware != "any" and rules.hardware != (hardware := describe_hardware(device, rules.mode, python)):
        raise OperatorError(
            "wrong_hardware",
            f"{holds} on the hardware {rules.hardware}, not {hardware}",
            fix=f"Set device to a device of type {rules.hardware}, or join another pool",
        )
    if rules.build != "any" and rules.build != (build := describe_build(name, interpreter)):
        raise OperatorError(
            "wrong_build", f"{holds} with the build {rules.build}, not {build}", fix=f"Install {rules.build}"
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
