"""The policies with which this worker can serve leases."""

from dataclasses import dataclass, field

from covey.protocol.ids import Step


@dataclass(slots=True)
class PolicyCache:
    """Policy versions that this worker has fetched or refused."""

    fetched: set[Step] = field(default_factory=set)
    """Versions that are or were on the disk."""
    refused: set[Step] = field(default_factory=set)
    """Versions that the engine refuses, or whose manifest is invalid."""

    @property
    def newest(self) -> Step | None:
        """Newest version with which leases can be served. None if there is none."""
        return max(self.fetched - self.refused, default=None)
