"""The command `python -m benchmarks.gpu SECTIONS`, which is `make gpu`.

It runs `tests/gpu` and then each section in a process of its own, which ends at a deadline.  Rows go into
`rows.jsonl` as they are measured, and `table.md` has all of them.  Both are in the folder $OUT, or else in build/gpu.
"""

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu.gpu_facts import GpuFacts, read_facts
from benchmarks.gpu.result_files import GpuResult
from benchmarks.gpu.section_list import SECTIONS, Section
from benchmarks.gpu.section_rows import FAILED, SectionRow, build_table, find_missed, read_rows
from benchmarks.isolated_process import ENVIRONMENT

MINUTES = 8.0
GRACE_S = 10.0
"""Seconds that a process has to close its engines before it is killed."""
TAIL = 15
"""Lines of a failed section's log that are shown."""
SUMMARY = re.compile(r"^.*\d+ (?:passed|failed|skipped|error).* in [\d.]+s.*$", re.MULTILINE)
"""Line in which pytest counts its tests: "20 passed, 1 skipped in 36.02s"."""
COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""Setting of torch for large tensors of changing sizes.  vLLM chooses its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRun:
    """Options of one run."""

    folder: Path
    """Folder of rows, table and logs."""
    ends: float
    """Value of `time.monotonic` at which everything has ended."""
    is_tiny: bool
    """Whether sizes are those of a CPU."""
    checks_noise: bool
    """Whether the noise of all words is compared."""

    @property
    def file(self) -> Path:
        """File of the rows."""
        return self.folder / "rows.jsonl"

    def add(self, row: SectionRow) -> None:
        """Append a row to the file."""
        with self.file.open("a") as file:
            file.write(row.encode())


def run(arguments: Sequence[str]) -> int:
    """Measure the sections that the arguments name; return 1 if one fails or, on a GPU, if a row misses its aim."""
    start, options, facts = time.monotonic(), parse(arguments), read_facts()
    print(facts.describe(), flush=True)
    gpu_run = GpuRun(
        folder=Path(os.environ.get("OUT") or "build/gpu"),
        ends=start + 60 * options.minutes,
        is_tiny=options.tiny or not facts.has_cuda,
        checks_noise=options.noise,
    )
    gpu_run.folder.mkdir(parents=True, exist_ok=True)
    gpu_run.file.unlink(missing_ok=True)
    failed, shown = list[str](), ""
    for section in SECTIONS:
        if options.sections and section.name not in options.sections:
            continue
        if not run_section(gpu_run, section):
            failed.append(f"{section.name} failed; read {gpu_run.folder / section.name}.log")
        shown = write_table(gpu_run, facts)
    rows = read_rows(gpu_run.file)
    if options.save and not gpu_run.is_tiny:
        print(f"Saved in {build_gpu_result(rows, facts).save()}; python -m benchmarks.results_page shows it.")
    missed = [] if gpu_run.is_tiny else find_missed(rows)
    print(f"\n{shown}\nResults are in {gpu_run.folder}.", flush=True)
    for line in (*missed, *failed):
        print(line, file=sys.stderr)
    return 1 if missed or failed or any(row.note.startswith(FAILED) for row in rows) else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments: `sections`, `minutes`, `tiny`, `noise` and `save`."""
    names = [each.name for each in SECTIONS]
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(names)}; default: all")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"time of everything; default: {MINUTES:g}")
    parser.add_argument("--tiny", action="store_true", help="sizes for a CPU; default where there is no GPU")
    parser.add_argument("--noise", action="store_true", help="compare the sampler's noise of all 2^32 words")
    parser.add_argument("--save", action="store_true", help="keep the rows of a GPU in benchmarks/results/gpu")
    options = parser.parse_args(arguments)
    if unknown := set(options.sections) - set(names):
        parser.error(f"there is no section {min(unknown)}; choose from {', '.join(names)}")
    return options


def build_gpu_result(rows: Sequence[SectionRow], facts: GpuFacts) -> GpuResult:
    """Build the result of a run on this day."""
    date = f"{datetime.now(UTC).date().isoformat()}, {facts.commit}".rstrip(", ")
    measured = [row for row in rows if row.value is not None]
    dates = {row.section: date for row in measured}
    return GpuResult(card=facts.device.partition(",")[0], dates=dates, rows=measured)


def write_table(gpu_run: GpuRun, facts: GpuFacts) -> str:
    """Write and return the table with what it is about."""
    note = "\nSizes are tiny, so the numbers mean nothing." if gpu_run.is_tiny else ""
    table = build_table(read_rows(gpu_run.file), is_judged=not gpu_run.is_tiny)
    shown = f"{facts.describe()}{note}\n\n{table}"
    (gpu_run.folder / "table.md").write_text(shown)
    return shown


def plan(section: Section, left: float, *, is_installed: bool, is_tiny: bool) -> float | str:
    """Return the seconds that a section gets of the seconds `left`, or the reason to skip it."""
    if not is_installed:
        return f"skipped: {section.package} is not installed"
    if left < (1 if is_tiny else section.least):
        return f"skipped: needs {section.least:.0f} s, {max(0.0, left):.0f} s are left"
    return min(section.most, left)


def run_section(gpu_run: GpuRun, section: Section) -> bool:
    """Run a section, or record why it is skipped; return whether its process ended well."""
    is_installed = importlib.util.find_spec(section.package) is not None
    left = gpu_run.ends - time.monotonic()
    planned = plan(section, left, is_installed=is_installed, is_tiny=gpu_run.is_tiny)
    if isinstance(planned, str):
        gpu_run.add(SectionRow(section=section.name, case="all", value=None, note=planned))
        print(f"{section.name}: {planned}", flush=True)
        return True
    start, log = time.monotonic(), gpu_run.folder / f"{section.name}.log"
    failure = run_process(build_command(gpu_run, section, planned), log, planned, build_environment(section))
    if not section.module:
        gpu_run.add(read_tests(log.read_text()))
    if failure:
        gpu_run.add(SectionRow(section=section.name, case="all", value=None, note=f"{FAILED}: {failure}"))
        print("\n".join(log.read_text().splitlines()[-TAIL:]), file=sys.stderr)
    count = sum(row.section == section.name for row in read_rows(gpu_run.file))
    print(f"{section.name}: {count} rows in {time.monotonic() - start:.0f} s {failure}".rstrip(), flush=True)
    return not failure


def build_command(gpu_run: GpuRun, section: Section, seconds: float) -> list[str]:
    """Build the command of a section's process."""
    if not section.module:
        return [sys.executable, "-m", "pytest", "tests/gpu"]
    flags = [*["--tiny"] * gpu_run.is_tiny, *["--noise"] * gpu_run.checks_noise]
    # All processes of a machine share this clock, so the imports of the section count.
    options = ["--file", str(gpu_run.file), "--ends", f"{time.monotonic() + seconds:.1f}"]
    return [sys.executable, "-m", "benchmarks.gpu.section_process", section.name, *options, *flags]


def build_environment(section: Section) -> dict[str, str]:
    """Build the environment of a section's process."""
    allocator = {} if section.package == "vllm" else ALLOCATOR
    return allocator | os.environ | ENVIRONMENT


def run_process(command: Sequence[str], log: Path, seconds: float, environment: dict[str, str]) -> str:
    """Run a command, whose output goes to `log`, for at most some seconds; return "" or how it failed."""
    with log.open("w") as output:
        child = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"ended after {seconds:.0f} s"
        finally:
            stop(child)
    return f"ended with signal {-code}" if code < 0 else f"ended with exit code {code}" if code else ""


def stop(child: "subprocess.Popen[bytes]") -> None:
    """End a process and those that it started, first by a signal that it can handle."""
    for number, seconds in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)


def read_tests(output: str) -> SectionRow:
    """Read the row of the tests from what pytest printed."""
    summary = (SUMMARY.findall(output) or [""])[-1]
    counts = {name: int(number) for number, name in COUNT.findall(summary)}
    others = ", ".join(f"{number} {name}" for name, number in counts.items() if name != "passed")
    passed, total = counts.get("passed", 0), sum(counts.values())
    return SectionRow(section="tests", case="tests/gpu", value=passed, unit="passed", n=total, note=others)
