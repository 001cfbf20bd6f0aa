"""Limits of one call in the sandbox."""

from dataclasses import asdict, dataclass
from typing import Self

WALL_FACTOR = 6
"""Ratio of the wall-clock limit to the CPU limit. It is generous, because a busy machine must not change a grade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """Limits of one call and of all processes that it starts. Example: `CallLimits(cpu_seconds=0.5)`."""

    cpu_seconds: float = 10.0
    """Maximum CPU seconds of the call and of all processes that it starts, together."""
    wall_seconds: float = 60.0
    """Maximum seconds from start to end of the call. This backstop for calls that sleep is generous compared with
    `cpu_seconds`.
    """
    memory_bytes: int = 1 << 30
    """Maximum bytes of memory that one process of the call may allocate, and that all together may use."""
    output_bytes: int = 64 << 20
    """Maximum size of the output in bytes."""
    processes: int = 64
    """Maximum number of processes and threads that exist at once, including the call itself."""
    scratch_bytes: int = 64 << 20
    """Maximum size of a file in bytes. It is also the size of the scratch folder if that is its own file system."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"{name} is {value}, but must be positive")

    @classmethod
    def for_cpu(cls, seconds: float, *, memory_bytes: int = 1 << 30, output_bytes: int = 64 << 20) -> Self:
        """Build limits with a wall-clock limit of `WALL_FACTOR` times the CPU seconds."""
        wall = WALL_FACTOR * seconds
        return cls(cpu_seconds=seconds, wall_seconds=wall, memory_bytes=memory_bytes, output_bytes=output_bytes)
