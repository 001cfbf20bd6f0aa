"""Whether the draw demanded the replay of a submission: anybody can say so from the chain and the epoch's file.

The file holds the submission's leaf, and the leaf the time of the countersignature.  Hash and root of the file are
checked against the chain, so that the operator cannot name another time afterwards.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields

from eth_abi.exceptions import EncodingError
from pydantic_core import from_json

from covey.chain.drawing_blocks import find_first_block
from covey.chain.history import History
from covey.errors import ProtocolError
from covey.protocol import canonical, eip712
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import Hash, PoolId, Step
from covey.protocol.merkle import MerkleTree
from covey.protocol.messages import Receipt
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.params import VerificationParams
from covey.protocol.seeding import is_audited

MAX_EPOCHS = 128
"""Epochs that are searched for a submission, from the publication of its policy on."""
ABSENT = ("missing", "not_public")

ReadObject = Callable[[str, int], Awaitable[bytes]]
"""Returns the object of a key, of at most that many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What the draw demands of a submission.  Example: Draw(block_number=9, is_due=True)."""

    block_number: int
    """Block that draws."""
    is_due: bool
    """Whether it must be replayed at the pool's audit rate.  Newcomers, strikes and the cap on undrawn pay may have it
    replayed although it is not due, never the other way round."""


async def find_draw(history: History, receipt: Receipt, *, rules: VerificationParams, read: ReadObject) -> Draw | None:
    """The draw of a submission; None while no epoch file at hand holds it, or while the drawing block does not exist.

    Raises ProtocolError("digest_mismatch") or ProtocolError("bad_epoch") for a file that is not the chain's.
    """
    receipt_hash = eip712.compute_struct_hash(receipt)
    signed_at = await _find_time(history, receipt, receipt_hash, read)
    if signed_at is None:
        return None
    head = history.client.get_block("latest")
    block = find_first_block(history.client, signed_at + rules.draw_seconds, head=head)
    if block is None:
        return None
    return Draw(block_number=block.number, is_due=is_audited(receipt_hash, block.hash, rules.audit_rate))


async def _find_time(history: History, receipt: Receipt, receipt_hash: Hash, read: ReadObject) -> int | None:
    """The countersignature's time, from the first epoch after the policy's publication that holds the submission."""
    pool = PoolId(receipt.pool)
    since = _get_publication(history, pool, receipt.policy_version)
    for posted in [event for event in history.list_epochs(pool) if event.block_number >= since][:MAX_EPOCHS]:
        try:
            data = await read(build_epoch_key(pool, posted.header.data_hash), MAX_EPOCH_BYTES)
        except ProtocolError as error:
            if error.code not in ABSENT:
                raise
            continue
        signed_at = read_time(data, posted.header, receipt_hash)
        if signed_at is not None:
            return signed_at
    return None


def _get_publication(history: History, pool: PoolId, step: Step) -> int:
    """Block in which the policy was published, or the first one of the deployment."""
    blocks = [event.block_number for event in history.list_policies(pool) if event.step == step]
    return blocks[-1] if blocks else history.contracts.deployment.start_block


def read_time(data: bytes, header: EpochHeader, receipt_hash: Hash) -> int | None:
    """Time of a submission's countersignature in the file of an epoch; None where it does not hold the submission.

    Raises ProtocolError("digest_mismatch") or ProtocolError("bad_epoch").
    """
    if canonical.sha256(data) != header.data_hash:
        raise ProtocolError("digest_mismatch", f"the file of epoch {header.epoch} does not have the chain's hash")
    names = [field.name for field in fields(WorkLeaf)]
    try:
        leaves = [WorkLeaf(**{name: leaf[name] for name in names}) for leaf in from_json(data)["leaves"]]
        root = MerkleTree([leaf.compute_hash() for leaf in leaves]).root
    except (KeyError, TypeError, ValueError, EncodingError) as error:
        raise ProtocolError("bad_epoch", f"the file of epoch {header.epoch} does not hold leaves") from error
    if root != header.work_root:
        raise ProtocolError("bad_epoch", f"the leaves of epoch {header.epoch} do not have the root on chain")
    times = [leaf.signed_at for leaf in leaves if leaf.receipt_hash == receipt_hash]
    return times[0] if times else None
