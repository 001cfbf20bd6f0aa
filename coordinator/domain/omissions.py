"""Answers omission challenges by proving that a receipt is in a posted epoch. An unanswered one costs the bond.

`chain_events` records the challenges that the chain reports, and then answers the open ones. A challenge of a receipt
that is in no epoch yet is answered once its epoch is posted. If the bond was paid for a receipt that an epoch pays too,
the same transaction has the ledger deduct it from the contributor's rewards. One pass builds one tree for each epoch
and writes in slices, so a flood of challenges costs little.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from coordinator.db.database_outbox import add_intent
from coordinator.db.models import EpochRow, SubmissionRow
from coordinator.db.omission_queries import ChallengeRow
from coordinator.db.repository import Repository
from coordinator.domain.settlement import build_header, build_work_leaf
from coordinator.domain.submissions import to_receipt
from covey.chain.contracts import EpochLedger
from covey.chain.json_rpc import Call
from covey.chain.structs import EpochRecord, Inclusion
from covey.protocol import merkle
from covey.protocol.ids import Hash, PoolId
from covey.runtime.log import get_logger

SLICE = 50
"""Maximum number of answers in one transaction, so that it stays far below the size and gas limits of nodes."""
MAX_TRIES = 8
"""Maximum number of transactions for one challenge. A reorganization or a lagging node may cause a refusal."""
NETTING_DELAY_SECONDS = 60.0
"""Time in seconds from when an epoch is final until payments are deducted. The chain's clock may be behind ours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One transaction that answers the challenges of some receipts."""

    receipt_hashes: tuple[Hash, ...]
    call: Call


def record_challenge(repository: Repository, receipt_hash: Hash, *, block: int) -> None:
    """Record that somebody challenged a receipt in this block, claiming that it is in no epoch.

    A receipt can be challenged again after the epoch that contains it was disabled.
    """
    challenge = repository.get_challenge(receipt_hash)
    if repository.get_submission(receipt_hash) is None:
        get_logger().error("a challenged receipt is not in this database", receipt_hash=receipt_hash)
    elif challenge is None:
        repository.add(ChallengeRow(receipt_hash=receipt_hash, block_number=block, tries=0))
    elif challenge.decided_block is not None:
        challenge.block_number, challenge.decided_block = block, None
        challenge.answer, challenge.tries = None, 0
        repository.flush()


def record_decision(repository: Repository, receipt_hash: Hash, *, block: int, paid: int | None = None) -> None:
    """Record that a challenge was answered in this block, or upheld, so that the operator's bond has paid `paid`.

    The bond pays nothing while it is empty. It may pay several times, and the first block is kept.
    """
    challenge = repository.get_challenge(receipt_hash)
    if challenge is None:
        return
    if not challenge.is_upheld:
        challenge.decided_block = block
    if paid is not None:
        get_logger().error("the operator's bond pays for a receipt", receipt_hash=receipt_hash, paid=paid)
        if not challenge.is_upheld:
            challenge.answer, challenge.tries = None, 0
        challenge.is_upheld, challenge.is_paid = True, challenge.is_paid or paid > 0
    repository.flush()


def record_netted(repository: Repository, receipt_hash: Hash, *, block: int) -> None:
    """Record that what the bond has paid for a receipt was deducted from rewards in this block."""
    challenge = repository.get_challenge(receipt_hash)
    if challenge is not None:
        challenge.netted_block = block
        repository.flush()


def build_answers(repository: Repository, ledger: EpochLedger, pool: PoolId, *, now: float) -> list[Answer]:
    """Return the transactions that answer all open challenges, and that have payments of the bond deducted.

    Each concerns at most SLICE challenges of one epoch.
    """
    answers: list[Answer] = []
    unanswered = repository.list_unanswered(most_tries=MAX_TRIES, final_before=now - NETTING_DELAY_SECONDS)
    for number, found in groupby(unanswered, key=lambda pair: pair[1].epoch):
        epoch = None if number is None else repository.get_epoch(number)
        if epoch is not None:
            answers += _answer_epoch(repository, ledger, pool, epoch, list(found))
    return answers


def _answer_epoch(
    repository: Repository,
    ledger: EpochLedger,
    pool: PoolId,
    epoch: EpochRow,
    found: Sequence[tuple[ChallengeRow, SubmissionRow]],
) -> list[Answer]:
    leaves = {row.receipt_hash: build_work_leaf(row) for row in repository.list_settled(epoch.number)}
    hashes = {receipt_hash: leaf.compute_hash() for receipt_hash, leaf in leaves.items()}
    tree = merkle.MerkleTree(list(hashes.values()))
    record, header = build_record(epoch), build_header(epoch, pool)

    def build_inclusion(row: SubmissionRow) -> Inclusion:
        proof = tree.get_proof(hashes[row.receipt_hash])
        return Inclusion(receipt=to_receipt(row, pool), leaf=leaves[row.receipt_hash], proof=tuple(proof))

    answers = []
    for start in range(0, len(found), SLICE):
        rows = [row for _, row in found[start : start + SLICE]]
        answers.append(
            Answer(
                receipt_hashes=tuple(Hash(row.receipt_hash) for row in rows),
                call=ledger.answer_omissions(record, header, [build_inclusion(row) for row in rows]),
            )
        )
    return answers


def build_record(epoch: EpochRow) -> EpochRecord:
    """Return the record of a posted epoch, as in its event EpochPosted."""
    return EpochRecord(
        header_hash=Hash(epoch.header_hash or ""),
        reward_root=Hash(epoch.reward_root),
        epoch=epoch.number,
        final_at=epoch.final_at or 0,
        reward=int(epoch.reward or 0),
        cumulative=int(epoch.cumulative or 0),
    )


def record_answer(repository: Repository, answer: Answer) -> None:
    """Add an intent for the answer, and record its key with each challenge."""
    key = _find_free_key(repository, answer.receipt_hashes[0])
    add_intent(repository, key=key, call=answer.call)
    for receipt_hash in answer.receipt_hashes:
        challenge = repository.get_challenge(receipt_hash)
        if challenge is None:
            continue
        if challenge.answer is not None and (refused := repository.get_intent(challenge.answer)) is not None:
            get_logger().error(
                "the ledger refused an answer", receipt_hash=receipt_hash, reason=refused.reason, tries=challenge.tries
            )
        challenge.answer, challenge.tries = key, challenge.tries + 1


def _find_free_key(repository: Repository, first: Hash) -> str:
    """Return an unused key for an intent whose first answer is for this receipt.

    An earlier intent with the same first receipt may be another call, because a reorganization can change both the
    challenges and the record of an epoch.
    """
    number = 0
    while repository.get_intent(key := f"answer/{first}/{number}") is not None:
        number += 1
    return key
