"""Bodies of the routes that validators call: turns, commitments, reveals, cases for the court, and epochs to sign."""

from typing import Annotated, Literal

from pydantic import Field

from covey.protocol.api.common import (
    MAX_EVIDENCE_BYTES,
    Body,
    ContractText,
    HashText,
    ReceiptBody,
    SignatureText,
    UInt64,
    VerdictBody,
    WaitRequest,
)


class TurnRequest(WaitRequest):
    """Long-poll request for a validator's next orders. A newer request from the same validator ends it."""

    holding: tuple[UInt64, ...] = Field(default=(), max_length=64)
    """Ids of the turns that the validator is judging or revealing. Others that it has taken are offered again."""
    free_turns: int = Field(default=1, ge=0, le=64)
    """Number of additional turns that the validator can take. With 0 it gets no new turn."""
    free_replays: int = Field(default=1, ge=1, le=64)
    """Maximum number of whole replays among the additional turns."""
    contract: ContractText = ""
    """Digest of the validator's execution contract. Empty: it judges work of the calibrated lane alone."""


class JudgeOrder(Body):
    """Order to judge a submission and then to commit to the verdict."""

    kind: Literal["judge"] = "judge"
    judgement: int
    receipt: ReceiptBody
    signature: SignatureText
    url: str
    """URL for downloading the submission's file."""
    record_hash: HashText
    contract: ContractText
    """Digest of the execution contract of the submission's node at intake. Empty: the calibrated lane."""
    draw: HashText
    """Hash of the submission's drawing block. It draws the rows that are replayed in any case."""
    full: bool
    """Whether all rows must be replayed. If not, only the drawn rows are, after the cheap checks."""
    seconds_left: float = Field(ge=0, allow_inf_nan=False)
    """Seconds until the commitment is due. It is a duration, not a time, because the clocks of machines differ."""


class RevealOrder(Body):
    """Order to reveal a verdict. It is sent once all commitments have arrived."""

    kind: Literal["reveal"] = "reveal"
    judgement: int


class ValidationOrders(Body):
    """Response to a TurnRequest: what the validator is to do, in this order. Empty if there is nothing in time."""

    orders: tuple[Annotated[JudgeOrder | RevealOrder, Field(discriminator="kind")], ...] = Field(max_length=64)


class CommitRequest(Body):
    """Request in which a validator commits to a verdict, before any other verdict is known."""

    judgement: UInt64
    commitment: HashText
    """keccak256(digest of the verdict, salt)."""


class RevealRequest(Body):
    """Request that reveals a signed verdict with its salt and evidence, after all commitments have arrived."""

    judgement: UInt64
    verdict: VerdictBody
    signature: SignatureText
    salt: HashText
    evidence: str = Field(max_length=MAX_EVIDENCE_BYTES)
    """Evidence bundle (`covey.protocol.evidence`) as JSON. Its hash is the verdict's `evidence_hash`."""


class HardCase(Body):
    """Arguments of one call of SlashingCourt.propose: a receipt and the hard verdicts on it, with signatures."""

    receipt: ReceiptBody
    signature: SignatureText
    verdicts: tuple[VerdictBody, ...]
    signatures: tuple[SignatureText, ...]


class HardCases(Body):
    """List of the cases that can be proposed to SlashingCourt."""

    cases: tuple[HardCase, ...]


class AwaitingEpoch(Body):
    """The epoch whose header validators are to sign, with the hash of its file, which has all other values."""

    epoch: UInt64
    header_hash: HashText
    data_hash: HashText
    """Hash of the epoch's file, which is public."""


class AttestRequest(Body):
    """Request with a validator's signature over the header of the epoch that awaits signatures."""

    header_hash: HashText
    signature: SignatureText


class VerdictsRequest(Body):
    """Request for the revealed verdicts on some receipts."""

    receipts: tuple[HashText, ...] = Field(min_length=1, max_length=64)


class SignedVerdicts(Body):
    """Revealed verdicts with their signatures, in the same order."""

    verdicts: tuple[VerdictBody, ...]
    signatures: tuple[SignatureText, ...]
