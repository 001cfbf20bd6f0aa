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
    """A long poll of a validator. A newer one of the same validator ends it."""

    holding: tuple[UInt64, ...] = Field(default=(), max_length=64)
    """Turns that the validator is working on. Any other turn that it has taken is handed out again."""
    free_turns: int = Field(default=1, ge=0, le=64)
    """Number of turns that the validator would take in addition. With 0 it waits only for orders to reveal."""


class JudgeOrder(Body):
    """Order to judge a submission and then commit."""

    kind: Literal["judge"] = "judge"
    judgement: int
    receipt: ReceiptBody
    signature: SignatureText
    url: str
    """URL from which the file can be downloaded."""
    manifest_hash: HashText
    full: bool
    """Whether the submission must be replayed. Otherwise only the cheap checks are made."""
    seconds_left: float = Field(ge=0, allow_inf_nan=False)
    """Seconds left for the commitment. It is a duration and not a deadline, because clocks of machines differ."""


class RevealOrder(Body):
    """Order to reveal a verdict, because all commitments are in."""

    kind: Literal["reveal"] = "reveal"
    judgement: int


class ValidationOrder(Body):
    """Answer to a TurnRequest."""

    order: Annotated[JudgeOrder | RevealOrder, Field(discriminator="kind")]


class CommitRequest(Body):
    """Commitment to a verdict, before other verdicts are known."""

    judgement: UInt64
    commitment: HashText
    """keccak256(digest of the verdict, salt)."""


class RevealRequest(Body):
    """A signed verdict with its salt and evidence, after all commitments are in."""

    judgement: UInt64
    verdict: VerdictBody
    signature: SignatureText
    salt: HashText
    evidence: str = Field(max_length=MAX_EVIDENCE_BYTES)
    """Bundle (`covey.protocol.evidence`) as JSON, of which `evidence_hash` is the hash."""


class HardCase(Body):
    """Everything that a call of SlashingCourt.propose needs."""

    receipt: ReceiptBody
    signature: SignatureText
    verdicts: tuple[VerdictBody, ...]
    signatures: tuple[SignatureText, ...]


class HardCases(Body):
    """Cases that can be brought before SlashingCourt."""

    cases: tuple[HardCase, ...]
