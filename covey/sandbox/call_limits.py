"""What one call in the sandbox may use."""

from dataclasses import asdict, dataclass
from typing import Self

WALL_FACTOR = 6
"""Wall clock over CPU time that callers allow: a machine that is busy with other work must not change a grade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of one call, with all processes that it starts.  Example: `Limits(cpu_seconds=0.5)`."""

    cpu_seconds: float = 10.0
    """CPU seconds of the call and of everything that it starts, together."""
    wall_seconds: float = 60.0
    """Seconds from start to end of the call. A backstop for calls that sleep: it is generous next to `cpu_seconds`."""
    memory_bytes: int = 1 << 30
    """Bytes that a process of the call may allocate, and that all of them together may hold."""
    output_bytes: int = 64 << 20
    """Largest size in bytes of an answer."""
    processes: int = 64
    """Largest number of processes and threads that exist at once, the call itself included."""
    scratch_bytes: int = 64 << 20
    """Largest size in bytes of a file, and of the scratch folder where it is a file system of its own."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}, which is not positive")

    @classmethod
    def for_cpu(cls, seconds: float, *, memory_bytes: int = 1 << 30, output_bytes: int = 64 << 20) -> Self:
        """Limits with a wall clock of `WALL_FACTOR` times the CPU seconds."""
        wall = WALL_FACTOR * seconds
        return cls(cpu_seconds=seconds, wall_seconds=wall, memory_bytes=memory_bytes, output_bytes=output_bytes)
