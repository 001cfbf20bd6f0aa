"""Bodies of the routes that validators call: turns, commitments, revealed verdicts, and cases for the court."""

from typing import Annotated, Literal

from pydantic import Field

from covey.protocol.api.common import (
    MAX_EVIDENCE_BYTES,
    Body,
    HashText,
    ReceiptBody,
    SignatureText,
    UInt64,
    VerdictBody,
    WaitRequest,
)


class TurnRequest(WaitRequest):
    """A long poll of a validator.  A newer one of the same validator ends it."""

    holding: tuple[UInt64, ...] = Field(default=(), max_length=64)
    """Turns that the validator works on; any other one that it has taken is handed out again."""
    free_turns: int = Field(default=1, ge=0, le=64)
    """Turns that the validator would take in addition.  With 0 it waits for orders to reveal only."""


class JudgeOrder(Body):
    """Judge this submission, then commit."""

    kind: Literal["judge"] = "judge"
    judgement: int
    receipt: ReceiptBody
    signature: SignatureText
    url: str
    """GET the file here."""
    manifest_hash: HashText
    full: bool
    """Replay included; otherwise the cheap checks alone."""
    seconds_left: float = Field(ge=0, allow_inf_nan=False)
    """Time for the commitment: no clock of another machine says when it is too late."""


class RevealOrder(Body):
    """All commitments are in: reveal."""

    kind: Literal["reveal"] = "reveal"
    judgement: int


class ValidationOrder(Body):
    order: Annotated[JudgeOrder | RevealOrder, Field(discriminator="kind")]


class CommitRequest(Body):
    judgement: UInt64
    commitment: HashText
    """keccak256(digest of the verdict, salt)."""


class RevealRequest(Body):
    judgement: UInt64
    verdict: VerdictBody
    signature: SignatureText
    salt: HashText
    evidence: str = Field(max_length=MAX_EVIDENCE_BYTES)
    """What `evidence_hash` is the hash of: the bundle (`covey.protocol.evidence`) as JSON."""


class HardCase(Body):
    """Everything that SlashingCourt.propose needs."""

    receipt: ReceiptBody
    signature: SignatureText
    verdicts: tuple[VerdictBody, ...]
    signatures: tuple[SignatureText, ...]


class HardCases(Body):
    cases: tuple[HardCase, ...]
