"""The bundle of a judgement: all that somebody else needs to judge again, named by the SHA-256 of its bytes.

Built by validators, kept by the coordinator, re-run by `covey validator audit`.  It is its validator's word only:
whoever reads one checks it against chain and storage.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field
from pydantic_core import from_json

from covey.errors import ProtocolError
from covey.protocol import canonical
from covey.protocol.api.common import (
    MAX_EVIDENCE_BYTES,
    AddressText,
    Body,
    HashText,
    ReceiptBody,
    SignatureText,
    UInt64,
)
from covey.protocol.ids import Hash, PoolId
from covey.protocol.verdict import Decision, Reason

MAX_DETAILS, MAX_TEXT = 32, 200
LIVE_GROUPS = "live_groups"
"""The detail of accepted work that an online filter goes by: how many of its groups have rewards that are not equal."""
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Statistic = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | Annotated[float, Field(allow_inf_nan=False)] | Text


class EngineFacts(Body, strict=True):
    """What may explain that two validators differ.  Example: name="hf", dtype="float32", batch=32, hardware="cpu"."""

    name: Name
    dtype: Name
    batch: int = Field(ge=1, le=4096)
    """Completions that are replayed together at most."""
    hardware: Text
    """What the engine ran on: "cpu", or the accelerator's name as torch gives it."""
    versions: dict[Name, Text] = Field(max_length=8)
    """Of covey and of the libraries that compute."""


class Bundle(Body, strict=True):
    """One validator's judgement of one submission.  Example: `Bundle.from_bytes(data).compute_hash()`."""

    version: Literal[2] = 2
    chain_id: UInt64
    court: AddressText
    """Where receipt and verdict are checked."""
    pool: PoolId
    params_hash: HashText
    """Of the pool's parameters, as the chain holds it."""
    receipt: ReceiptBody
    signature: SignatureText
    """The node's, on the receipt."""
    manifest_hash: HashText
    """Of the claimed policy version."""
    full: bool
    """Whether the replay was part of it; otherwise the cheap checks alone."""
    decision: Decision
    reason: Reason
    units: UInt64
    details: dict[Name, Statistic] = Field(max_length=MAX_DETAILS)
    """Row, window and statistics of the failure; of accepted work LIVE_GROUPS."""
    engine: EngineFacts
    isolation: Text
    """Rung of isolation that the file was decoded and the texts were graded on, for example "bwrap"."""

    def to_bytes(self) -> bytes:
        """Canonical JSON, at most MAX_EVIDENCE_BYTES."""
        return canonical.to_bytes(self.model_dump(mode="json"))

    def compute_hash(self) -> Hash:
        """The verdict's evidence_hash."""
        return canonical.sha256(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse what a stranger wrote; raise ProtocolError("bad_evidence") unless it is a bundle in canonical form."""
        if len(data) > MAX_EVIDENCE_BYTES:
            raise ProtocolError("bad_evidence", f"a bundle has at most {MAX_EVIDENCE_BYTES} bytes")
        try:
            bundle = cls.model_validate_json(data, strict=True)
            is_canonical = bundle.to_bytes() == data
        except ValueError as error:
            raise ProtocolError("bad_evidence", "this is not a bundle of a judgement") from error
        if not is_canonical:
            raise ProtocolError("bad_evidence", "the bundle is not in canonical form")
        return bundle


def require_object(data: bytes) -> dict[str, Any]:
    """The JSON object that `data` is, a later version of a bundle too; raise ProtocolError("bad_evidence")."""
    try:
        found = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ProtocolError("bad_evidence", "evidence is a JSON object") from error
    if not isinstance(found, dict):
        raise ProtocolError("bad_evidence", "evidence is a JSON object")
    return found


def get_live_groups(bundle: Mapping[str, Any], *, groups: int) -> int | None:
    """What a bundle says of a submission of so many groups; None unless it is one of the numbers 0 .. `groups`."""
    details = bundle.get("details")
    count = details.get(LIVE_GROUPS) if isinstance(details, dict) else None
    return count if type(count) is int and 0 <= count <= groups else None
