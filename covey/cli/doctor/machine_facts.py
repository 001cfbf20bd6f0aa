"""Gathers facts about the machine of a role: device, engine, folders and port. It writes nothing.

Torch runs in a subprocess, which can be killed.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from covey.cli.doctor.snapshot import DeviceFacts, EngineProbe, FolderFacts, Trouble
from covey.engines.factory import choose_engine, require_engine
from covey.engines.installation import ask_for_accelerators, describe_build, measure_memory
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError
from covey.protocol.hardware_needs import Accelerator, MachineHardware
from covey.protocol.params import PoolParams
from covey.runtime.http import listen
from covey.runtime.settings import RoleSettings

if TYPE_CHECKING:
    from coordinator.config import CoordinatorConfig

DEVICE_SECONDS = 20.0
"""Timeout of torch in seconds, some of which it needs to start. Other facts are gathered meanwhile."""
_GPUS = Path("/proc/driver/nvidia/gpus")


def look_at_device(settings: "RoleSettings | CoordinatorConfig") -> DeviceFacts:
    """Return name and memory of the device in the settings. Raises OperatorError("bad_device")."""
    device: str = getattr(settings, "device", "cpu")
    if device == "cpu":
        return DeviceFacts(name="cpu", memory=measure_memory("cpu"), has_idle_gpu=_GPUS.is_dir())
    vllm = getattr(settings, "vllm", None)
    command = [str((vllm and vllm.interpreter) or sys.executable), "-m", "covey.engines.installation", "memory", device]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEVICE_SECONDS, check=False)
    if ended.returncode:
        reason = ended.stderr.strip().rpartition("\n")[2].partition("bad_device: ")
        fix = "Set device to one that covey doctor lists"
        raise OperatorError("bad_device", (reason[2] or reason[0]).partition(". Set device")[0], fix=fix)
    return DeviceFacts(**json.loads(ended.stdout))


def look_at_engine(role: Literal["worker", "validator"], settings: RoleSettings, params: PoolParams) -> EngineProbe:
    """Return the engine that the role will start with.

    Raises the OperatorError of `require_engine`, and OperatorError("bad_engine") if the engine is not installed.
    """
    rules, vllm = params.verification, getattr(settings, "vllm", VllmOptions())
    name = choose_engine(getattr(settings, "engine", "auto"), rules, role=role, interpreter=vllm.interpreter)
    dtype, device = params.model.compute_dtype, settings.device
    threads: int = getattr(settings, "threads", 1)
    contract = require_engine(
        name, rules, role=role, dtype=dtype, device=device, vllm=vllm, threads=threads, is_apart=True
    )
    return EngineProbe(name=name, build=describe_build(name, vllm.interpreter), contract=contract)


def look_at_machine(folder: Path, *, gpus: int | None, bandwidth_mbits: float | None) -> MachineHardware:
    """Return what workers of this machine would have. `gpus` is the number of GPUs that they use; None means all.

    Raises OperatorError("bad_device") if torch cannot be asked.
    """
    found = [] if gpus == 0 else ask_for_accelerators()
    return MachineHardware(
        memory_bytes=measure_memory("cpu"),
        accelerators=tuple(Accelerator(name=name, memory_bytes=memory) for name, memory in found[:gpus]),
        free_disk_bytes=shutil.disk_usage(_find_present(folder)).free,
        bandwidth_bits=None if bandwidth_mbits is None else int(bandwidth_mbits * 1e6),
    )


def _find_present(root: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())


def look_at_folder(root: Path) -> FolderFacts:
    present = _find_present(root)
    sizes = (os.path.getsize(path) for path in root.rglob("*") if path.is_file())
    return FolderFacts(
        free=shutil.disk_usage(present).free,
        held=sum(sizes),
        is_writable=present.is_dir() and os.access(present, os.W_OK | os.X_OK),
    )


def find_port_trouble(host: str, port: int) -> Trouble | None:
    """Return why the process cannot listen on the port. None if it can."""
    try:
        listen(host, port).close()
    except OperatorError as error:
        return Trouble.of(error)
    return None
