"""What a run of `make gpu` is about: the GPU, its driver and free memory, and the versions of packages."""

import importlib.metadata
import importlib.util
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from benchmarks import results
from covey.engines.installation import OTHER_NAMES

PACKAGES = ("torch", "triton", "transformers", "vllm")
QUERY = ("nvidia-smi", "--query-gpu=name,driver_version,memory.free,memory.total", "--format=csv,noheader")
TIMEOUT_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The device and the packages.

    Example: GpuFacts(has_cuda=True, device="NVIDIA H200, driver 580.95.05, 143000 MiB of 143771 MiB free", ...).
    """

    has_cuda: bool
    """Whether torch finds a GPU."""
    device: str
    """Description of the GPU, or of the processor if torch finds no GPU."""
    versions: dict[str, str]
    """Versions by package.  "" if a package is not installed."""
    commit: str
    """Abbreviated commit that is measured.  Empty outside a repository."""

    def describe(self) -> str:
        """Describe everything in two lines."""
        packages = [f"{name} {version or 'is not installed'}" for name, version in self.versions.items()]
        commit = f", commit {self.commit}" if self.commit else ""
        return f"{self.device}{commit}\n{', '.join(packages)}"


def read_facts() -> GpuFacts:
    """Read the facts of this machine, without memory of the GPU."""
    import torch

    has_cuda = torch.cuda.is_available()
    return GpuFacts(
        has_cuda=has_cuda,
        device=describe_gpu(ask_driver()) if has_cuda else results.describe_machine().processor,
        versions={name: read_version(name) for name in PACKAGES},
        commit=results.describe_commit(),
    )


def ask_driver() -> str:
    """Return the first line that nvidia-smi prints.  Empty if it does not run."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return (done.stdout.splitlines() or [""])[0]


def describe_gpu(line: str) -> str:
    """Describe a GPU from a line of nvidia-smi: "NVIDIA H200, 580.95.05, 143000 MiB, 143771 MiB"."""
    parts = [part.strip() for part in line.split(",")]
    if len(parts) != 4:
        return "a GPU that nvidia-smi does not describe"
    name, driver, free, total = parts
    return f"{name}, driver {driver}, {free} of {total} free"


def read_version(package: str) -> str:
    """Read the version of an installed package, or return "" if it cannot be imported."""
    if importlib.util.find_spec(package) is None:
        return ""
    for name in (package, OTHER_NAMES.get(package, package)):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return "of an unknown version"
