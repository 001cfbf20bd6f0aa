"""The head of a pool: the policies that an origin serves, and the transport manifests that lead to them.

It is the only document at an origin or a relay that changes. It is not signed and need not be: a client looks for
policies that are on chain and verifies the manifests. A false head can only hide policies, so clients ask several
relays.
"""

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import FailFast, Field

from covey.protocol import canonical, peer_json
from covey.protocol.ids import ZERO_HASH, Hash
from covey.protocol.peer_json import HashText, PeerModel

MAX_HEAD_BYTES = 4 << 20
"""Maximum size of an encoded head."""
MAX_POLICIES = 1 << 13
"""Maximum number of policies in a head."""


class Way(PeerModel):
    """A transport manifest in a head."""

    manifest: HashText
    """Address of the manifest."""
    base: HashText = ZERO_HASH
    """Hash of the record that the manifest needs. ZERO_HASH for an anchor."""
    size: int = Field(ge=0, lt=1 << 50)
    """Total size of the manifest's pieces in bytes."""


class ServedPolicy(PeerModel):
    """A policy in a head."""

    step: int = Field(ge=0, lt=1 << 63)
    record: HashText
    trained_at: float = Field(default=0.0, ge=0, lt=1 << 40, allow_inf_nan=False)
    """Unix time at which the trainer says that the policy was complete. It serves metrics only. 0 if unknown."""
    ways: Annotated[tuple[Way, ...], FailFast()] = Field(max_length=64)
    """Manifests that lead to the policy."""


class Head(PeerModel):
    """The policies of a pool at an origin, newest first."""

    pool: int = Field(ge=1, lt=1 << 63)
    policies: Annotated[tuple[ServedPolicy, ...], FailFast()] = Field(max_length=MAX_POLICIES)

    def to_bytes(self) -> bytes:
        """Return the head as canonical JSON. Raises ValueError if it exceeds MAX_HEAD_BYTES."""
        data = canonical.to_bytes(self.model_dump(mode="json"))
        if len(data) > MAX_HEAD_BYTES:
            raise ValueError(f"the head of pool {self.pool} has {len(data)} bytes, but at most {MAX_HEAD_BYTES} fit")
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse untrusted bytes. Raises ProtocolError("bad_head") unless they are a valid head."""
        return peer_json.parse(cls, data, name="head", code="bad_head", max_bytes=MAX_HEAD_BYTES)


def build_head(pool: int, policies: Iterable[ServedPolicy]) -> Head:
    """Return the head of a pool with as many of its newest policies as fit into a head, newest first."""
    head = Head(pool=pool, policies=())
    size, included = len(head.to_bytes()), []
    for policy in sorted(policies, key=lambda policy: -policy.step)[:MAX_POLICIES]:
        size += len(canonical.to_bytes(policy.model_dump(mode="json"))) + len(b",")
        if size > MAX_HEAD_BYTES:
            break
        included.append(policy)
    return Head(pool=pool, policies=tuple(included))


def get_head_path(pool: int) -> str:
    """Return the URL path of a pool's head at an origin or a relay."""
    return f"/heads/{pool}.json"


def get_record_path(record: Hash) -> str:
    """Return the URL path of a policy record."""
    return f"/records/{record}"


def get_manifest_path(address: Hash) -> str:
    """Return the URL path of a transport manifest or of the manifest of a data set."""
    return f"/manifests/{address}"


def get_piece_path(digest: Hash) -> str:
    """Return the URL path of a piece."""
    return f"/pieces/{digest}"
