"""What a coordinator reports about a submission, and the verdicts on it that its case has refuted.

A case that was executed refutes those who accepted after a replay of all rows. A case that was vetoed refutes those who
signed it. The court slashes both kinds once, and checks everything again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from covey.chain.structs import Accusation, Case, OnChainCaseState
from covey.errors import ProtocolError
from covey.protocol.api.public import SubmissionDetail
from covey.protocol.canaries import require_consent
from covey.protocol.eip712 import Domain, compute_struct_hash, require_signer
from covey.protocol.ids import PoolId
from covey.protocol.messages import CanaryConsent, Verdict
from covey.protocol.verdict import Decision, Reason, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseVerdict:
    """A signed verdict that the case about its receipt has refuted. Example: `verdict.is_accept`."""

    accusation: Accusation
    verdict: Verdict
    signature: str

    @property
    def is_accept(self) -> bool:
        """Whether the validator accepted the work of a cheat. Otherwise it signed a case that was vetoed."""
        return self.verdict.outcome == Decision.ACCEPT


def list_false_verdicts(accusation: Accusation, case: Case, detail: SubmissionDetail) -> Iterator[FalseVerdict]:
    """Yield the hard verdicts that a case has refuted. None while the case is open."""
    refuted = {
        OnChainCaseState.SLASHED: (Decision.ACCEPT, Reason.NONE),
        OnChainCaseState.VETOED: (Decision.REJECT, Reason(case.reason)),
    }.get(case.state)
    for body, signature in zip(detail.verdicts, detail.signatures, strict=True):
        verdict = body.to_message()
        if verdict.severity == Severity.HARD and (verdict.outcome, verdict.reason) == refuted:
            yield FalseVerdict(accusation=accusation, verdict=verdict, signature=signature)


def require_true(detail: SubmissionDetail, prefix: str, *, pool: PoolId, domain: Domain) -> None:
    """Check what a coordinator reports of the submission whose hash begins with `prefix`.

    `domain` is that of receipts. Raises ProtocolError("bad_answer") or ProtocolError("bad_signature") if a hash or a
    signature is wrong, and ProtocolError("no_consent") if the operator calls work a canary that its contributor does
    not.
    """
    if not detail.receipt_hash.startswith(prefix):
        raise ProtocolError(
            "bad_answer", f"the coordinator returned a submission whose hash does not start with {prefix}"
        )
    if detail.receipt is not None and compute_struct_hash(detail.receipt.to_message()) != detail.receipt_hash:
        raise ProtocolError(
            "bad_answer", f"the receipt that the coordinator returned does not have the hash {detail.receipt_hash}"
        )
    if detail.receipt is not None and detail.receipt.pool != pool:
        raise ProtocolError("bad_answer", f"the coordinator serves pool {detail.receipt.pool}, not {pool}")
    if detail.kind:
        consent = CanaryConsent(pool=pool, node=detail.node, kind=detail.kind)
        require_consent(consent, detail.consent or "", domain=domain, contributor=detail.contributor)
    if len(detail.verdicts) != len(detail.signatures):
        raise ProtocolError("bad_answer", "the coordinator returned a different number of verdicts than signatures")
    for verdict, signature in zip(detail.verdicts, detail.signatures, strict=True):
        if verdict.receipt_hash != detail.receipt_hash:
            raise ProtocolError("bad_answer", "the coordinator returned a verdict about a different submission")
        require_signer(verdict.to_message(), domain, signature, verdict.validator)
