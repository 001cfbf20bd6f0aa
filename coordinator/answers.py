"""Answers omission challenges: shows that a receipt is in an epoch that stands, before the operator's bond pays for it.

Called by `loop` with what the chain tells.  A receipt that no epoch holds yet is answered when its epoch is posted.
"""

from coordinator.db import Repository
from coordinator.models import Epoch, Submission
from coordinator.outbox import add_intent
from coordinator.service import to_receipt
from coordinator.settlement import build_header, build_work_leaf
from covey.chain.client import Call
from covey.chain.contracts import EpochLedger
from covey.chain.structs import EpochRecord, Inclusion
from covey.log import get_logger
from covey.protocol import merkle
from covey.protocol.ids import Hash, PoolId


def record_challenge(repository: Repository, receipt_hash: Hash, *, is_open: bool) -> None:
    """Somebody says that a receipt is in no epoch, or the chain has decided that."""
    row = repository.get_submission(receipt_hash)
    if row is not None:
        row.challenged = is_open
        repository.session.flush()
    elif is_open:
        get_logger().error("a receipt that is not in this database is challenged", receipt_hash=receipt_hash)


def answer_challenges(repository: Repository, ledger: EpochLedger, pool: PoolId) -> None:
    """Have an intent for the answer to every challenge that can be answered; one for each epoch that shows it."""
    for row in repository.list_challenged():
        epoch = repository.get_epoch(row.epoch) if row.epoch is not None else None
        if epoch is not None and epoch.header_hash is not None and not epoch.disabled:
            call = build_answer(repository, ledger, pool, row, epoch)
            add_intent(repository, key=f"answer/{row.receipt_hash}/{epoch.number}", call=call)


def build_answer(repository: Repository, ledger: EpochLedger, pool: PoolId, row: Submission, epoch: Epoch) -> Call:
    """The proof that the leaf of a settled submission is in the work tree of its posted epoch."""
    hashes = [build_work_leaf(each).compute_hash() for each in repository.list_settled(epoch.number)]
    leaf = build_work_leaf(row)
    record = EpochRecord(
        header_hash=Hash(epoch.header_hash or ""),
        reward_root=Hash(epoch.reward_root),
        epoch=epoch.number,
        final_at=epoch.final_at or 0,
        reward=int(epoch.reward or 0),
        cumulative=int(epoch.cumulative or 0),
    )
    proof = tuple(merkle.MerkleTree(hashes).get_proof(leaf.compute_hash()))
    inclusion = Inclusion(receipt=to_receipt(row, pool), leaf=leaf, proof=proof)
    return ledger.answer_omissions(record, build_header(epoch, pool), [inclusion])
