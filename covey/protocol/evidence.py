"""Evidence bundle of a judgement: everything that another party needs to repeat it.

A bundle is identified by the SHA-256 of its bytes. Validators build bundles, the coordinator stores them, and
`covey validator audit` repeats their judgements. A bundle is only a claim of its validator, so a reader must
check it against the chain and the object store.
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
    ContractText,
    HashText,
    ReceiptBody,
    SignatureText,
    UInt64,
)
from covey.protocol.ids import Hash, PoolId
from covey.protocol.running_sums import ItemSum, StatisticName
from covey.protocol.seeding import MAX_AUDIT_ROWS
from covey.protocol.verdict import Decision, Reason

MAX_DETAILS, MAX_TEXT = 32, 200
LIVE_GROUPS = "live_groups"
"""Key in `Bundle.details` of an accepted submission: its number of live groups, for the online filter."""
DRAWN = "drawn"
"""Key in `Bundle.details` of a rejection by replay: 1 if the drawn rows alone show it, else 0."""
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Statistic = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | Annotated[float, Field(allow_inf_nan=False)] | Text


class EngineFacts(Body, strict=True):
    """Facts about a validator's engine, which may explain why two validators disagree.

    Example: name="hf", dtype="float32", batch=32, hardware="cpu", contract="".
    """

    name: Name
    dtype: Name
    batch: int = Field(ge=1, le=4096)
    """Maximum number of completions that are replayed together in one batch."""
    hardware: Text
    """Hardware that the engine ran on: "cpu", or the accelerator's name as torch reports it."""
    versions: dict[Name, Text] = Field(max_length=8)
    """Versions of covey and of the numerical libraries, by package name."""
    contract: ContractText
    """Digest of the engine's execution contract. Empty: it judges in the calibrated lane alone."""


class Bundle(Body, strict=True):
    """Evidence for a validator's judgement of one submission. Example: `Bundle.from_bytes(data).compute_hash()`."""

    version: Literal[5] = 5
    chain_id: UInt64
    court: AddressText
    """Address of the SlashingCourt contract, which verifies the receipt and the verdict."""
    pool: PoolId
    params_hash: HashText
    """Hash of the pool's parameters, as it is on chain."""
    receipt: ReceiptBody
    signature: SignatureText
    """The node's signature on the receipt."""
    record_hash: HashText
    """Hash of the manifest of the claimed policy version."""
    contract: ContractText
    """Digest of the execution contract that the order named for the submission. Empty: the calibrated lane."""
    draw: HashText
    """Hash of the submission's drawing block, as the order named it."""
    rows: tuple[int, ...] = Field(max_length=MAX_AUDIT_ROWS)
    """Rows of the submission's file, from 0, that `draw` has replayed in any case, in drawn order."""
    full: bool
    """Whether all rows had to be replayed. If not, only the drawn `rows` had to be."""
    decision: Decision
    reason: Reason
    units: UInt64
    details: dict[Name, Statistic] = Field(max_length=MAX_DETAILS)
    """Row, window and statistics of the failure, with DRAWN after a replay. For an accepted submission, LIVE_GROUPS."""
    sums: dict[StatisticName, ItemSum]
    """Sums of the distances of the replayed rows, which are added up for the node. Empty if nothing was replayed, if
    the replay differed too much, or in the exact lane.
    """
    engine: EngineFacts
    isolation: Text
    """Isolation level of the sandbox that decoded the file and graded the replies, for example "bwrap"."""

    def to_bytes(self) -> bytes:
        """Return the bundle as canonical JSON, at most MAX_EVIDENCE_BYTES long."""
        return canonical.to_bytes(self.model_dump(mode="json"))

    def compute_hash(self) -> Hash:
        """Return the SHA-256 of the bundle's bytes. The verdict contains it as `evidence_hash`."""
        return canonical.sha256(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse untrusted bytes.

        Raises ProtocolError("bad_evidence") unless they are a bundle in canonical form of at most MAX_EVIDENCE_BYTES
        bytes.
        """
        if len(data) > MAX_EVIDENCE_BYTES:
            raise ProtocolError("bad_evidence", f"the evidence bundle exceeds {MAX_EVIDENCE_BYTES} bytes")
        try:
            bundle = cls.model_validate_json(data, strict=True)
            is_canonical = bundle.to_bytes() == data
        except ValueError as error:
            raise ProtocolError("bad_evidence", "the data is not a valid evidence bundle") from error
        if not is_canonical:
            raise ProtocolError("bad_evidence", "the evidence bundle is not in canonical form")
        return bundle


def require_object(data: bytes) -> dict[str, Any]:
    """Parse evidence that may be of a later version.

    Raises ProtocolError("bad_evidence") if it is not a JSON object.
    """
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise ProtocolError("bad_evidence", "the evidence is not a JSON object") from error
    if not isinstance(value, dict):
        raise ProtocolError("bad_evidence", "the evidence is not a JSON object")
    return value


def get_live_groups(bundle: Mapping[str, Any], *, groups: int) -> int | None:
    """Return the number of live groups that a bundle reports for a submission of `groups` groups.

    The result is None if the bundle reports no integer from 0 to `groups`.
    """
    details = bundle.get("details")
    count = details.get(LIVE_GROUPS) if isinstance(details, dict) else None
    return count if type(count) is int and 0 <= count <= groups else None


def is_in_drawn_rows(bundle: Mapping[str, Any]) -> bool:
    """Return whether a bundle reports a failure that the drawn rows alone show."""
    details = bundle.get("details")
    found = details.get(DRAWN) if isinstance(details, dict) else None
    return type(found) is int and found == 1
