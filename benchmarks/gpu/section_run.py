"""What a section of `make gpu` is given: the device, the sizes, the time left, and where its rows go.

Each case is attempted by itself, so that one which fails or runs out of memory does not take the others with it.
"""

import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from benchmarks.gpu.section_rows import FAILED, SectionRow
from benchmarks.measurement import Bar
from covey.errors import CoveyError
from trainer.monitoring.performance import get_peak_memory

T = TypeVar("T")
FAILURES = (
    ArithmeticError, AssertionError, AttributeError, CoveyError, ImportError, LookupError, MemoryError, OSError,
    RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""Errors that end a case and not its section.  Those of CUDA and of missing GPU memory are a RuntimeError."""
MARGIN = 3.0
"""Seconds that remain of a section's time when its last repeated run begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionRun:
    """One run of one section."""

    section: str
    """Name of the section."""
    device: str
    """PyTorch device: "cuda" or "cpu"."""
    is_tiny: bool
    """Whether sizes are as small as a CPU computes in a moment."""
    ends: float
    """Value of `time.monotonic` at which the process is ended."""
    file: Path
    """File to which rows are appended."""
    checks_noise: bool = False
    """Whether the section "sampler" compares the noise of all words, which takes longer."""

    @property
    def left(self) -> float:
        """Seconds until the process is ended."""
        return self.ends - time.monotonic()

    def pick(self, full: T, tiny: T) -> T:
        """Return the size of a GPU, or that of a CPU."""
        return tiny if self.is_tiny else full

    def attempt(self, case: str, measure: Callable[[], None], *, seconds: float) -> None:
        """Measure a case, which records its own rows.

        `seconds` is about what it takes on an H100.  If less is left, or if it fails, the row of the case says so.
        """
        if not self.is_tiny and self.left < seconds:
            self.record(case, None, note=f"skipped: needs {seconds:.0f} s, {max(0.0, self.left):.0f} s are left")
            return
        self.clear_memory()
        _, failure = self.guard(measure)
        if failure:
            self.record(case, None, note=failure)
        self.clear_memory()

    def guard(self, call: Callable[[], T]) -> tuple[T | None, str]:
        """Return the result of a call and "", or None and a description of its failure."""
        try:
            return call(), ""
        except FAILURES as error:
            traceback.print_exc()
            first_line = (str(error).splitlines() or [""])[0]
            return None, f"{FAILED}: {type(error).__name__}: {first_line[:120]}"

    def time(
        self, call: Callable[[], object], *, repeats: int = 3, calls: int = 1, is_warm: bool = False
    ) -> list[float]:
        """Return the seconds of a call in each of up to `repeats` runs, at least one.

        Each run makes the given number of calls, and its result is their mean.  A first run, which compiles and fills
        caches, does not count, unless the call `is_warm`.
        """
        seconds: list[float] = []
        if not is_warm:
            call()
        while not seconds or (len(seconds) < repeats and self.left > MARGIN + seconds[-1] * calls):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            self.synchronize()
            seconds.append((time.perf_counter() - start) / calls)
        return seconds

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device == "cuda":
            torch.cuda.synchronize()

    def clear_memory(self) -> None:
        """Return unused memory to the device, and begin a new peak."""
        gc.collect()
        if self.device == "cuda" and self.guard(self.synchronize)[1] == "":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def read_peak_gb(self) -> float | None:
        """Return the peak memory since `clear_memory` in units of 10^9 bytes.  None on a CPU."""
        return get_peak_memory(self.device) / 1e9 if self.device == "cuda" else None

    def record(
        self, case: str, value: float | None, unit: str = "", *, n: int = 1, peer: str = "",
        peer_value: float | None = None, aim: Bar | None = None, is_value_aimed: bool = False,
        memory_gb: float | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """Append a row to the file.  The aim is that of the ratio, unless `is_value_aimed`."""
        row = SectionRow(
            section=self.section, case=case, value=value, unit=unit, n=n, peer=peer, peer_value=peer_value, aim=aim,
            aim_of="value" if is_value_aimed else "ratio", memory_gb=memory_gb, note=note,
        )  # fmt: skip
        with self.file.open("a") as file:
            file.write(row.encode())
        print(row.encode(), end="", flush=True)

    def record_times(
        self, case: str, seconds: Sequence[float], peer_seconds: Sequence[float], unit: str, **rest: Any
    ) -> None:
        """Append a row with the medians of two lists of seconds, in "s", "ms" or "us"."""
        scale = {"s": 1.0, "ms": 1e3, "us": 1e6}[unit]
        peer_value = median(peer_seconds) * scale if peer_seconds else None
        self.record(case, median(seconds) * scale, unit, n=len(seconds), peer_value=peer_value, **rest)
