"""Which policies this worker can serve leases with."""

from dataclasses import dataclass, field

from covey.protocol.ids import Step


@dataclass(slots=True)
class PolicyCache:
    """Versions by what is known of them."""

    fetched: set[Step] = field(default_factory=set)
    """Versions that are or were on the disk."""
    refused: set[Step] = field(default_factory=set)
    """Versions that no engine takes."""

    @property
    def newest(self) -> Step | None:
        """The newest version to work with. None: there is none."""
        return max(self.fetched - self.refused, default=None)
