"""How the benchmarks of verification run: their processes, the sums of what these count, and the bars.

A benchmark runs one process for each architecture and number format.  Each process writes its counts to its own
file, and `conclude` adds them up.
"""

import argparse
import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.harness import OUTPUT, finish
from benchmarks.measurement import Bar, Measurement
from benchmarks.verification.policy_variants import ARCHITECTURES
from benchmarks.verification.rejections import Counts
from covey.engines.hf.engine import prepare_process

SHORT = {"float32": "fp32", "bfloat16": "bf16"}
"""Number formats and what the names of measurements call them."""
RATES = ("detection.", "observed.", "curve.", "token_match.")
"""Beginnings of the names whose value is hits over n.  The value of all others is the hits."""
FORGERIES_PASSED = "forgery_passes."
NEVER = ("false_rejects", "false_slashes")
"""Ends of the names whose value must be 0, as that of a forgery that passes must."""


@dataclass(frozen=True, kw_only=True)
class VerificationBars:
    """Bars of a benchmark of verification.  Rejected honest work and forgeries that pass always have the bar 0."""

    rates: Mapping[str, tuple[float, int]]
    """Least rate, and least n of a full run, by the beginning of a name.  Example: {"detection.": (0.999, 3000)}."""
    names: tuple[str, ...] = ()
    """Names that must be present.  A measurement that counted nothing would be absent and fail no bar."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Least n of a full run, by name."""
    most: Mapping[str, float] = field(default_factory=dict)
    """Largest value, by name."""

    def get(self, name: str) -> tuple[Bar | None, int]:
        """Return the bar of a name, None if it has none, and its least n in a full run."""
        rate, n = next((each for prefix, each in self.rates.items() if name.startswith(prefix)), (None, 0))
        n = self.sizes.get(name, n)
        if name.startswith(FORGERIES_PASSED) or name.endswith(NEVER):
            return Bar(most=0), n
        most = self.most.get(name)
        return (None if rate is None and most is None else Bar(least=rate, most=most)), n


def scale_count(count: int, scale: float) -> int:
    """Return a share of `count`, at least 1."""
    return max(1, round(count * scale))


def find_failures(measurements: Sequence[Measurement], bars: VerificationBars, scale: float) -> list[str]:
    """Return one line for each bar that is missed, each n that is too small, and each measurement that is absent.

    In a run of a part (`scale` below 1), n is not judged.  A single miss does not fail a rate there, because it says
    little of the rate.
    """
    is_full, names = scale >= 1, {measurement.name for measurement in measurements}
    failures = [f"{name} was not measured" for name in (*bars.names, *bars.sizes) if name not in names]
    for measurement in measurements:
        bar, n = bars.get(measurement.name)
        has_value = math.isfinite(measurement.value)
        misses = round((1 - measurement.value) * measurement.n) if has_value else measurement.n
        miss = bar.describe_miss(measurement.value) if bar else None
        is_judged = is_full or bar is None or bar.least is None or misses > 1
        if miss is not None and is_judged:
            failures.append(f"{measurement.name} is {measurement.value:.4g}, {miss}")
        if is_full and measurement.n < n:
            failures.append(f"{measurement.name} has an n of {measurement.n}, less than {n}")
    return failures


def build_measurements(counts: Counts) -> list[Measurement]:
    """Build rates with their n.  Counts of what must not happen stay counts."""
    measurements = []
    for name, (hits, n) in sorted(counts.items()):
        is_rate = name.startswith(RATES)
        value, unit = (hits / n, "rate") if is_rate else (hits, "count")
        measurements.append(Measurement(name=name, value=value, unit=unit, n=n))
    return measurements


def build_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Build a parser of the options that these benchmarks share."""
    parser = argparse.ArgumentParser(f"make bench NAME={name}", description=description)
    parser.add_argument("--scale", type=float, default=1.0, help="share of every n; default: 1")
    parser.add_argument("--dtype", choices=SHORT, help="one number format to run; the other is taken from the last run")
    parser.add_argument("--one", choices=ARCHITECTURES, help=argparse.SUPPRESS)
    return parser


def run_one(name: str, options: argparse.Namespace, run: Callable[[str, str, float], Counts]) -> None:
    """Run one architecture in one number format in this process, and write its counts to their file."""
    prepare_process(threads=1)
    counts = run(options.one, options.dtype, options.scale)
    path = get_path(name, options.one, options.dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"scale": options.scale, "counts": counts}))


def run_all(name: str, options: argparse.Namespace) -> bool:
    """Run the architectures concurrently, one number format after the other; return whether all processes succeeded."""
    for dtype in (options.dtype,) if options.dtype else SHORT:
        command = [sys.executable, "-m", "benchmarks", name, "--scale", str(options.scale), "--dtype", dtype, "--one"]
        running = [subprocess.Popen([*command, architecture]) for architecture in ARCHITECTURES]
        codes = [process.wait() for process in running]
        if any(codes):
            return False
    return True


def conclude(
    name: str,
    options: argparse.Namespace,
    bars: VerificationBars,
    arguments: Sequence[str],
    measure_more: Callable[[], Sequence[Measurement]] = tuple,
    *,
    build: Callable[[Counts], list[Measurement]] = build_measurements,
) -> int:
    """Add up what the processes counted, finish the benchmark, and return the exit code.

    `build` turns the counts into measurements, and `measure_more` returns further ones.  Counts that are absent or of
    another scale are an error.
    """
    counts: Counts = defaultdict(lambda: [0, 0])
    for path in (get_path(name, architecture, dtype) for architecture in ARCHITECTURES for dtype in SHORT):
        if not path.exists():
            print(f"{path} is missing. Run make bench NAME={name} without --dtype.", file=sys.stderr)
            return 1
        counted = json.loads(path.read_text())
        if counted["scale"] != options.scale:
            print(
                f"{path} has scale {counted['scale']}, not {options.scale}. Run its number format again.",
                file=sys.stderr,
            )
            return 1
        for measurement, (hits, n) in counted["counts"].items():
            counts[measurement][0] += hits
            counts[measurement][1] += n
    measurements = [*build(counts), *measure_more()]
    failures = find_failures(measurements, bars, options.scale)
    measurements = [replace(each, bar=bars.get(each.name)[0]) for each in measurements]
    return finish(name, measurements, failures, arguments)


def get_path(name: str, architecture: str, dtype: str) -> Path:
    """Return the file of one process's counts."""
    return OUTPUT / f"{name}-{architecture}-{dtype}.json"
