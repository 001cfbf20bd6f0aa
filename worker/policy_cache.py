"""The policies with which this worker can serve leases."""

from dataclasses import dataclass, field

from covey.protocol.ids import Step


@dataclass(slots=True)
class PolicyCache:
    """Policy versions that this worker has fetched or refused."""

    fetched: set[Step] = field(default_factory=set)
    """Versions that have been fetched to the disk. Some may have been deleted since."""
    refused: set[Step] = field(default_factory=set)
    """Versions that the engine refused, or whose record is invalid."""

    @property
    def newest(self) -> Step | None:
        """Newest version that can serve leases. None if there is none."""
        return max(self.fetched - self.refused, default=None)
