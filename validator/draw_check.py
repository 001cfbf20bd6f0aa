"""Recomputes from the chain and the epoch's file which block drew a submission, and whether it required its replay.

The file contains the submission's leaf, and the leaf contains the time of the countersignature. The file's hash and
root are checked against the chain, so the operator cannot claim a different time afterwards.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from covey.chain.drawing_blocks import find_first_block
from covey.chain.history import History
from covey.errors import ProtocolError
from covey.protocol import eip712
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.epoch_file import EpochFile
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Hash, PoolId, Step
from covey.protocol.messages import Receipt
from covey.protocol.object_keys import build_epoch_key
from covey.protocol.params import VerificationParams
from covey.protocol.seeding import is_audited

MAX_EPOCHS = 128
"""Maximum number of epochs to search for a submission, starting at the publication of its policy."""
ABSENT = ("missing", "not_public")
"""Error codes for an epoch file that cannot be read. Such a file is skipped."""

ReadObject = Callable[[str, int], Awaitable[bytes]]
"""Function that takes an object's key and a maximum number of bytes, and returns the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The draw of a submission. Example: Draw(block_number=9, block_hash="0x...", is_due=True)."""

    block_number: int
    """Number of the drawing block."""
    block_hash: Hash
    """Hash of the drawing block, which draws the rows that are replayed in any case."""
    is_due: bool
    """Whether the submission must be replayed whole at the pool's audit rate.

    A submission that is not due may still be replayed whole, because its node is new or has strikes, or because of the
    limit of undrawn pay. A due submission is never exempt.
    """


async def find_draw(history: History, receipt: Receipt, *, rules: VerificationParams, read: ReadObject) -> Draw | None:
    """Return the draw of a submission.

    Returns None while no readable epoch file contains the submission, or while the drawing block does not exist.
    Raises ProtocolError("digest_mismatch") or ProtocolError("bad_epoch") for a file that does not match the chain.
    """
    receipt_hash = eip712.compute_struct_hash(receipt)
    signed_at = await _find_time(history, receipt, receipt_hash, read)
    if signed_at is None:
        return None
    head = history.client.get_block("latest")
    block = find_first_block(history.client, signed_at + rules.draw_seconds, head=head)
    if block is None:
        return None
    is_due = is_audited(receipt_hash, block.hash, rules.audit_rate)
    return Draw(block_number=block.number, block_hash=block.hash, is_due=is_due)


async def _find_time(history: History, receipt: Receipt, receipt_hash: Hash, read: ReadObject) -> int | None:
    """Return the time of the countersignature, from the first epoch after the policy's publication that contains the
    submission.
    """
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
    """Return the block in which the policy was published.

    If it is unknown, return the first block of the deployment.
    """
    blocks = [event.block_number for event in history.list_policies(pool) if event.step == step]
    return blocks[-1] if blocks else history.contracts.deployment.start_block


def read_time(data: bytes, header: EpochHeader, receipt_hash: Hash) -> int | None:
    """Return the Unix time in seconds of a submission's countersignature, from the file of an epoch.

    Returns None if the file does not contain the submission. Raises ProtocolError("digest_mismatch") if the file's hash
    is not the hash on chain. Raises ProtocolError("bad_epoch") if it is malformed or contradicts its header.
    """
    leaves = EpochFile.from_bytes(data, header).leaves
    times = [leaf.signed_at for leaf in leaves if leaf.receipt_hash == receipt_hash]
    return times[0] if times else None
