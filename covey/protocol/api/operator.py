"""Bodies of the routes that the pool's operator calls: a pause of new tasks, and pardons."""

from pydantic import Field

from covey.protocol.api.common import AddressText, Body, UInt64


class PauseRequest(Body):
    """Request to pause new tasks, or to assign them again."""

    is_paused: bool


class PardonRequest(Body):
    """Request to take back the strikes of a contributor."""

    address: AddressText
    """Address of the contributor, or of one of its nodes."""


class PardonResponse(Body):
    """What a pardon took back. Example: strikes=8, and the address of one node."""

    contributor: AddressText
    strikes: UInt64
    """Number of strikes that were taken back."""
    nodes: tuple[AddressText, ...] = Field(max_length=65_536)
    """Nodes that were suspended for strikes or faults, and get tasks again unless they were removed."""
