"""Which submissions are canaries, what the public sees of them, and how validators judged them.

The commitment to a canary is public from the beginning. Its salt and kind are public once the submission is decided.
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
    """Return the canary kind of a receipt, and the contributor's signature that consents to it.

    The kind is ORDINARY and the signature is empty if the node is not a canary, or if its contributor has changed since
    the consent.
    """
    canary = canaries.get(receipt.node)
    if canary is None:
        return CanaryKind.ORDINARY, ""
    consent = CanaryConsent(pool=receipt.pool, node=receipt.node, kind=canary.kind)
    try:
        require_consent(consent, canary.consent, domain=domain, contributor=receipt.contributor)
    except ProtocolError as error:
        get_logger().error("a canary has no valid consent", node=receipt.node, code=error.code, message=error.message)
        return CanaryKind.ORDINARY, ""
    return canary.kind, canary.consent


def compute_public(secret: bytes, row: SubmissionRow) -> tuple[Hash, Hash | None, CanaryKind | None]:
    """Return the canary commitment, salt and kind of a submission. Salt and kind are None until it is decided."""
    receipt_hash, kind = Hash(row.receipt_hash), CanaryKind(row.canary)
    salt = compute_salt(secret, receipt_hash)
    commitment = compute_canary_commitment(receipt_hash, salt, kind)
    return (commitment, None, None) if row.state is SubmissionState.SUBMITTED else (commitment, salt, kind)


def count_scores(
    repository: Repository, *, bonds: Mapping[Address, int], active: Container[str]
) -> Mapping[str, ValidatorView]:
    """Return the score of each validator: its revealed verdicts on decided submissions, and its failures.

    `bonds` maps the pool's validators to their bonds. `active` contains the validators whose verdicts the court counts.

    A canary counts if it was replayed and the validator accepted or rejected it. The outcome unknown does not count.
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
