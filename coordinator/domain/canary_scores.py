"""Which submissions are canaries, what the public sees of them, and how validators did on them.

The commitment is shown from the first moment, salt and kind when the
submission is decided.
"""

from collections.abc import Mapping

from coordinator.db.models import SubmissionRow
from coordinator.db.repository import Repository
from covey.protocol.api.public import ValidatorView
from covey.protocol.canaries import CanaryKind, compute_canary_commitment, compute_salt
from covey.protocol.ids import Hash
from covey.protocol.status import SubmissionState
from covey.protocol.verdict import Decision


def get_kind(canaries: Mapping[str, str], node: str) -> CanaryKind:
    """What the operator expects of a node's work."""
    expected = canaries.get(node)
    return CanaryKind.ORDINARY if expected is None else CanaryKind[expected.upper()]


def compute_public(secret: bytes, row: SubmissionRow) -> tuple[Hash, Hash | None, CanaryKind | None]:
    """(commitment, salt, kind) of a submission; the latter two are None until it is decided."""
    receipt_hash, kind = Hash(row.receipt_hash), CanaryKind(row.canary)
    salt = compute_salt(secret, receipt_hash)
    commitment = compute_canary_commitment(receipt_hash, salt, kind)
    return (commitment, None, None) if row.state is SubmissionState.SUBMITTED else (commitment, salt, kind)


def count_scores(repository: Repository) -> Mapping[str, ValidatorView]:
    """How each validator has judged: what it has revealed on decided submissions, and where it failed.

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
    return {
        validator: ValidatorView(
            judged=row.judged,
            canaries=seen.get(validator, 0),
            missed=missed.get(validator, 0),
            lapsed=row.lapsed,
            contradicted=row.contradicted,
        )
        for validator, row in repository.list_validators().items()
    }
