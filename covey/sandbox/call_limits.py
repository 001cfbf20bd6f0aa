"""Limits of one call in the sandbox."""

from dataclasses import asdict, dataclass
from typing import Self

WALL_FACTOR = 6
"""Ratio of wall clock to CPU time that callers allow. It is generous, because a machine that is busy with other work
must not change a grade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of one call and of all processes that it starts. Example: `CallLimits(cpu_seconds=0.5)`."""

    cpu_seconds: float = 10.0
    """Most CPU seconds that the call and everything that it starts may use together."""
    wall_seconds: float = 60.0
    """Most seconds from the start to the end of the call. This is a backstop for calls that sleep, so it is generous
    compared with `cpu_seconds`."""
    memory_bytes: int = 1 << 30
    """Most bytes that one process of the call may allocate, and that all of its processes together may hold."""
    output_bytes: int = 64 << 20
    """Largest size of an answer in bytes."""
    processes: int = 64
    """Largest number of processes and threads that exist at once, including the call itself."""
    scratch_bytes: int = 64 << 20
    """Largest size of a file in bytes, and of the scratch folder if it is a file system of its own."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}, but must be positive")

    @classmethod
    def for_cpu(cls, seconds: float, *, memory_bytes: int = 1 << 30, output_bytes: int = 64 << 20) -> Self:
        """Build limits whose wall clock is `WALL_FACTOR` times the CPU seconds."""
        wall = WALL_FACTOR * seconds
        return cls(cpu_seconds=seconds, wall_seconds=wall, memory_bytes=memory_bytes, output_bytes=output_bytes)
