"""The sections of `make gpu` in their order, with the time and the packages that each needs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the measurements, which runs in a process of its own."""

    name: str
    """Name on the command line.  Example: "sampler"."""
    module: str
    """Module with the function `measure(run)`.  Empty for the tests, which pytest runs."""
    least: float
    """Seconds below which it is not begun on a GPU, because its first result takes as long."""
    most: float
    """Seconds after which it is ended."""
    package: str = "torch"
    """Package without which it is skipped."""


SECTIONS = (
    Section(name="tests", module="", least=30, most=120, package="pytest"),
    Section(name="sampler", module="benchmarks.gpu.sampler_speed", least=20, most=60),
    Section(name="trainer", module="benchmarks.gpu.update_speed", least=30, most=150),
    Section(name="replay", module="benchmarks.gpu.replay_speed", least=30, most=80),
    Section(name="export", module="benchmarks.gpu.save_speed", least=40, most=90),
    Section(name="honest", module="benchmarks.gpu.honest_work", least=40, most=120),
    Section(name="engine", module="benchmarks.gpu.vllm_speed", least=90, most=210, package="vllm"),
    Section(name="exact", module="benchmarks.gpu.bit_equality", least=60, most=1500, package="vllm"),
)
"""All sections in the order in which they run."""
