"""Results of benchmarks as JSON: the file of the last run under build/bench, and the committed files.

A file in benchmarks/results belongs to one kind of machine and holds the newest result of each benchmark there.
`build_result` makes a result of this machine, `save` adds it to the machine's file.
"""

import json
import math
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measurement import Bar, Measurement
from covey.runtime.files import write_atomically

FOLDER = Path(__file__).parent / "results"
VECTOR_EXTENSIONS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
"""CPU flags of Linux and the names of the vector extensions, widest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A kind of machine.  Example: processor="AMD EPYC, family 25, AVX-512", cores=2, gpu=None, memory_gb=32."""

    processor: str
    """Name, CPU family and widest vector extension of the processor."""
    cores: int | None
    """Number of cores that the system shows.  None if it was not recorded."""
    gpu: str | None = None
    """Name of the first GPU.  None if there is none."""
    memory_gb: int | None = None
    """Main memory in units of 2^30 bytes.  None if it was not recorded."""

    @property
    def slug(self) -> str:
        """Name of the machine's file without its ending.  Machines that differ in memory alone share a file."""
        cores = f"{self.cores} cores" if self.cores else ""
        text = " ".join(filter(None, (self.processor, cores, self.gpu)))
        return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """What one run of one benchmark measured."""

    date: str
    """Day of the run in UTC.  Example: "2026-11-25"."""
    command: str
    """Command that repeats the run.  Example: "make bench NAME=memory"."""
    commit: str = ""
    """Abbreviated commit that was measured, with "-dirty" if files differed from it.  Empty outside a repository."""
    python: str = ""
    """Version of Python.  Empty if it was not recorded."""
    note: str = ""
    """A sentence without which a number would mislead.  Usually empty."""
    measurements: tuple[Measurement, ...]
    """Numbers in the order in which they are shown."""


Results = dict[str, BenchmarkResult]
"""Results of one machine by the name of the benchmark."""


def describe_machine() -> Machine:
    """Describe this machine from the files of the Linux kernel; elsewhere from what Python knows."""
    gpus = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    models = [line.partition(":")[2].strip() for path in gpus[:1] for line in _read(path) if line.startswith("Model:")]
    total = next((line.split()[1] for line in _read(Path("/proc/meminfo")) if line.startswith("MemTotal:")), None)
    return Machine(
        processor=describe_processor(_read(Path("/proc/cpuinfo"))) or platform.processor() or platform.machine(),
        cores=os.cpu_count(),
        gpu=models[0] if models else None,
        memory_gb=round(int(total) / 2**20) if total else None,
    )


def describe_processor(cpuinfo: Sequence[str]) -> str:
    """Describe the first processor of /proc/cpuinfo.  Example: "Intel Xeon, family 6, AMX"; "" if there is none."""
    fields: dict[str, str] = {}
    for line in cpuinfo:
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = re.sub(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*", " ", fields.get("model name", ""))
    flags = fields.get("flags", "").split()
    extension = next((shown for flag, shown in VECTOR_EXTENSIONS.items() if flag in flags), "")
    family = f"family {fields['cpu family']}" if "cpu family" in fields else ""
    return ", ".join(filter(None, (" ".join(name.split()), family, extension)))


def describe_commit() -> str:
    """Return the abbreviated commit of the repository, with "-dirty" if files differ from it, or "" without one."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, timeout=60, check=False)
    except OSError:  # git is not installed
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def build_result(name: str, measurements: Sequence[Measurement], arguments: Sequence[str]) -> BenchmarkResult:
    """Build the result of a run of the current commit that ended now; `arguments` are those of the benchmark."""
    command = f"make bench NAME={name}" + (f' ARGS="{shlex.join(arguments)}"' if arguments else "")
    return BenchmarkResult(
        date=datetime.now(UTC).date().isoformat(),
        commit=describe_commit(),
        command=command,
        python=platform.python_version(),
        measurements=tuple(measurements),
    )


def save(name: str, result: BenchmarkResult, machine: Machine) -> Path:
    """Write a result into the machine's file, where it replaces the one of the same benchmark; return the file."""
    path = FOLDER / f"{machine.slug}.json"
    results = read(path)[1] if path.exists() else {}
    FOLDER.mkdir(exist_ok=True)
    write_atomically(path, encode(machine, results | {name: result}).encode())
    return path


def read(path: Path) -> tuple[Machine, Results]:
    """Read the machine and the results of a file."""
    values = json.loads(path.read_text())
    return Machine(**values["machine"]), {name: _decode_result(each) for name, each in values["benchmarks"].items()}


def encode(machine: Machine, results: Mapping[str, BenchmarkResult]) -> str:
    """Encode a file of results as JSON with one measurement per line, so that a difference shows what changed."""
    fields = ("processor", "cores", "gpu", "memory_gb")
    head = json.dumps({field: getattr(machine, field) for field in fields})
    parts = [f"{json.dumps(name)}: {_encode_result(results[name])}" for name in sorted(results)]
    return f'{{\n"machine": {head},\n"benchmarks": {{\n' + ",\n".join(parts) + "\n}\n}\n"


def _encode_result(result: BenchmarkResult) -> str:
    fields = {name: getattr(result, name) for name in ("date", "commit", "command", "python", "note")}
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items() if value]
    rows = [f"    {json.dumps(_encode_measurement(each), ensure_ascii=False)}" for each in result.measurements]
    return "{\n" + ",\n".join([*lines, '  "measurements": [\n' + ",\n".join(rows) + "\n  ]"]) + "\n}"


def _encode_measurement(measurement: Measurement) -> dict[str, Any]:
    """Leave out what is empty, and round fractions to seven digits.

    JSON has neither NaN nor infinity: both become null.
    """
    bar, value = measurement.bar, measurement.value
    rounded = float(f"{value:.7g}") if math.isfinite(value) and value % 1 else value
    limits = {"least": bar.least, "most": bar.most} if bar else {}
    return {
        "name": measurement.name,
        "value": rounded if math.isfinite(value) else None,
        "unit": measurement.unit,
        "n": measurement.n,
        **({"bar": {key: value for key, value in limits.items() if value is not None}} if bar else {}),
        **({"peer": measurement.peer} if measurement.peer else {}),
    }


def _decode_result(values: Mapping[str, Any]) -> BenchmarkResult:
    measurements = []
    for each in values["measurements"]:
        value = math.nan if each["value"] is None else each["value"]
        measurements.append(
            Measurement(**{**each, "value": value, "bar": Bar(**each["bar"]) if "bar" in each else None})
        )
    return BenchmarkResult(**{**values, "measurements": tuple(measurements)})


def _read(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
