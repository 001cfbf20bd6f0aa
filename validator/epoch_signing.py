"""Signs the headers of epochs, once their files agree with the chain and with this validator's own verdicts.

A file that does not is refused: its header is not signed, and the log says why, once for each header and reason.
"""

import asyncio
from collections.abc import Callable

from covey.chain.history import History
from covey.errors import ProtocolError
from covey.network.epoch_check import PostedEpochs, read_posted, require_next
from covey.protocol import canonical
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.api.validator import AwaitingEpoch
from covey.protocol.eip712 import sign
from covey.protocol.epoch_file import EpochFile
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.ids import Hash
from covey.protocol.object_keys import build_epoch_key
from covey.runtime.cycle import CycleResult
from covey.runtime.log import get_logger
from validator.context import Context
from validator.epoch_leaves import find_contested, require_supported

AWAITING_SECONDS = 2.0
"""Seconds between two looks for an epoch that awaits signatures."""
REFUSED_SECONDS = 30.0
"""Seconds after which a refused header is checked again, because the chain's node may have lagged."""
VERDICTS_AT_ONCE = 64
"""Number of receipts whose verdicts are requested at once."""


class Attester:
    """The cycle that signs headers, with what it remembers of the last header that it refused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create a cycle. `clock` returns a time in seconds."""
        self._clock = clock
        self._refused: tuple[str, str] | None = None
        """Hash of the last header that failed its check, and the code. None if there was none."""
        self._next_at = float("-inf")
        """Time at which a refused header is checked again."""

    async def cycle(self, ctx: Context) -> CycleResult:
        """Sign the header of the epoch that awaits signatures, unless its check fails."""
        awaiting = await ctx.network.coordinator.find_awaiting_epoch()
        if awaiting is None or (self._is_refused(awaiting) and self._clock() < self._next_at):
            return CycleResult.IDLE
        try:
            signature = await check_and_sign(ctx, awaiting)
        except ProtocolError as error:
            if not await asyncio.to_thread(_is_newest, ctx, awaiting):
                self._log_refusal(awaiting, error)
            self._refused, self._next_at = (awaiting.header_hash, error.code), self._clock() + REFUSED_SECONDS
            return CycleResult.IDLE
        await ctx.network.coordinator.attest(Hash(awaiting.header_hash), signature)
        get_logger().info("epoch was signed", epoch=awaiting.epoch, header_hash=awaiting.header_hash)
        return CycleResult.DONE

    def _is_refused(self, awaiting: AwaitingEpoch) -> bool:
        return self._refused is not None and self._refused[0] == awaiting.header_hash

    def _log_refusal(self, awaiting: AwaitingEpoch, error: ProtocolError) -> None:
        if (awaiting.header_hash, error.code) != self._refused:
            get_logger().error("epoch was not signed", epoch=awaiting.epoch, code=error.code, message=error.message)


def _is_newest(ctx: Context, awaiting: AwaitingEpoch) -> bool:
    """Return whether the chain has the epoch already, which others have signed. The coordinator will see it later."""
    return ctx.network.contracts.ledger.head_of(ctx.network.pool) == awaiting.header_hash


async def check_and_sign(ctx: Context, awaiting: AwaitingEpoch) -> str:
    """Check the file of an epoch, sign its header, and keep both in the validator's home.

    Raises ProtocolError("digest_mismatch"), and the errors of `EpochFile.from_unposted`, `require_next`,
    `find_contested` and `require_supported`.
    """
    network = ctx.network
    history = History(client=network.chain, contracts=network.contracts)
    data = await _fetch(ctx, awaiting.data_hash)
    file, header = await asyncio.to_thread(_read, ctx, data, awaiting)
    posted = await asyncio.to_thread(read_posted, history, network.pool)
    before = await _fetch_before(ctx, posted)
    await asyncio.to_thread(require_next, history, file, header, posted=posted, before=before)
    own = ctx.verdicts.find(leaf.receipt_hash for leaf in file.leaves)
    await _require_supported(ctx, find_contested(file.leaves, own))
    signature = sign(header, network.ledger_domain, network.wallet)
    ctx.epochs.keep(header, data, signature)
    return signature


async def _fetch(ctx: Context, data_hash: str) -> bytes:
    """Download the file of an epoch. Raises ProtocolError("digest_mismatch") if it has another hash."""
    key = build_epoch_key(ctx.network.pool, data_hash)
    data = await ctx.network.coordinator.get_public(key, max_bytes=MAX_EPOCH_BYTES)
    if canonical.sha256(data) != data_hash:
        raise ProtocolError("digest_mismatch", f"the file {key} does not have the hash in its name")
    return data


def _read(ctx: Context, data: bytes, awaiting: AwaitingEpoch) -> tuple[EpochFile, EpochHeader]:
    domain = ctx.network.ledger_domain
    file, header = EpochFile.from_unposted(data, chain=domain.chain_id, ledger=domain.contract)
    if header.pool != ctx.network.pool or header.compute_hash() != awaiting.header_hash:
        raise ProtocolError("bad_epoch", f"the file of epoch {header.epoch} is not that of {awaiting.header_hash}")
    return file, header


async def _fetch_before(ctx: Context, posted: PostedEpochs) -> bytes | None:
    """Return the file of the newest epoch that stands. None if there is no such epoch."""
    if posted.newest is None:
        return None
    header = posted.newest.header
    return await asyncio.to_thread(ctx.epochs.find, header) or await _fetch(ctx, header.data_hash)


async def _require_supported(ctx: Context, contested: list[WorkLeaf]) -> None:
    """Ask for the verdicts of others on contested leaves. Raises ProtocolError("false_leaf")."""
    if not contested:
        return
    network = ctx.network
    members = await asyncio.to_thread(network.contracts.pools.get_validators, network.pool)
    others = {each for each in members if each != network.wallet.address}
    for start in range(0, len(contested), VERDICTS_AT_ONCE):
        part = contested[start : start + VERDICTS_AT_ONCE]
        shown = await network.coordinator.list_verdicts([leaf.receipt_hash for leaf in part])
        require_supported(part, shown, domain=network.receipt_domain, others=others, quorum=network.terms.quorum)
