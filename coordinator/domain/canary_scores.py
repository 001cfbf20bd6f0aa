"""Which submissions are canaries, what the public sees of them, and how validators did on them.

The commitment is shown from the first moment, salt and kind when the
submission is decided.
"""

from collections.abc import Container, Mapping

from coordinator.db.models import SubmissionRow
from coordinator.db.repository import Repository
from covey.errors import ProtocolError
from covey.protocol.api.public import ValidatorView
from covey.protocol.canaries import Canary, CanaryKind, compute_canary_commitment, compute_salt, require_consent
from covey.protocol.eip712 import Domain
from covey.protocol.ids import Address, Hash
from covey.protocol.messages import CanaryConsent, Receipt
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision
from covey.runtime.log import get_logger


def find_consent(canaries: Mapping[str, Canary], receipt: Receipt, domain: Domain) -> tuple[CanaryKind, str]:
    """What the operator expects of a receipt's work, and the consent of its contributor to call it a canary.

    The work is ordinary, and the consent empty, if the node is not named, or another contributor vouches for it now.
    """
    canary = canaries.get(receipt.node)
    if canary is None:
        return CanaryKind.ORDINARY, ""
    consent = CanaryConsent(pool=receipt.pool, node=receipt.node, kind=canary.kind)
    try:
        require_consent(consent, canary.consent, domain=domain, contributor=receipt.contributor)
    except ProtocolError as error:
        get_logger().error("work of a canary is ordinary", node=receipt.node, code=error.code, message=error.message)
        return CanaryKind.ORDINARY, ""
    return canary.kind, canary.consent


def compute_public(secret: bytes, row: SubmissionRow) -> tuple[Hash, Hash | None, CanaryKind | None]:
    """(commitment, salt, kind) of a submission; the latter two are None until it is decided."""
    receipt_hash, kind = Hash(row.receipt_hash), CanaryKind(row.canary)
    salt = compute_salt(secret, receipt_hash)
    commitment = compute_canary_commitment(receipt_hash, salt, kind)
    return (commitment, None, None) if row.state is SubmissionState.SUBMITTED else (commitment, salt, kind)


def count_scores(
    repository: Repository, *, bonds: Mapping[Address, int], active: Container[str]
) -> Mapping[str, ValidatorView]:
    """How each validator has judged: what it has revealed on decided submissions, and where it failed.

    `bonds` are those of the pool's validators, and `active` names the ones whose verdicts the court counts.

    A canary counts when it was replayed and the validator's word was accept or reject: unknown is neither.
    """
    seen: dict[str, int] = {}
    missed: dict[str, int] = {}
    for judgement, kind in repository.list_canary_judgements():
        if judgement.validator is None or judgement.verdict is None:
            continue
        outcome = judgement.verdict.outcome
        if outcome == Decision.UNKNOWN:
            continue
        seen[judgement.validator] = seen.get(judgement.validator, 0) + 1
        is_missed = outcome != CanaryKind(kind).expected
        missed[judgement.validator] = missed.get(judgement.validator, 0) + is_missed
    rows = repository.list_validators()
    return {
        validator: ValidatorView(
            judged=row.judged if row else 0,
            canaries=seen.get(validator, 0),
            missed=missed.get(validator, 0),
            lapsed=row.lapsed if row else 0,
            slow=row.slow if row else 0,
            contradicted=row.contradicted if row else 0,
            bond=bonds.get(Address(validator)),
            is_active=validator in active,
        )
        for validator in sorted({*rows, *bonds})
        for row in (rows.get(validator),)
    }
