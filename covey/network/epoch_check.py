"""What a validator checks before it signs the header of an epoch: the file, against the chain and earlier epochs.

`covey epoch sign` and the validator's process make the same checks. The validator's own verdicts are checked by
`validator.epoch_leaves`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.chain.events import EpochPosted
from covey.chain.history import History
from covey.errors import ProtocolError
from covey.protocol.epoch_file import EpochFile, require_rewards
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address, PoolId


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedEpochs:
    """The epochs of a pool that are on chain."""

    events: Sequence[EpochPosted]
    """All posted epochs, including disabled ones, oldest first."""
    newest: EpochPosted | None
    """Newest epoch that is not disabled. None if there is none. The rewards of the next epoch continue its rewards."""


def read_posted(history: History, pool: PoolId) -> PostedEpochs:
    """Read the epochs of a pool from the chain."""
    posted, ledger = history.list_epochs(pool), history.contracts.ledger
    newest = next((each for each in reversed(posted) if ledger.is_posted(pool, each.record)), None)
    return PostedEpochs(events=posted, newest=newest)


def require_next(
    history: History, file: EpochFile, header: EpochHeader, *, posted: PostedEpochs, before: bytes | None
) -> None:
    """Raise an error unless the epoch continues the chain's epochs and its rewards follow from its work and verdicts.

    It does not check that validators gave the verdicts that the epoch counts.

    `before` is the file of `posted.newest`, None if that is None. Raises ProtocolError("bad_epoch") if the epoch is not
    the next one, has more units than the terms allow, or repeats work of `before`. Raises
    ProtocolError("false_rewards"), and the errors of `EpochFile.from_bytes` about `before`.
    """
    pool, ledger = header.pool, history.contracts.ledger
    expected = ledger.epochs_of(pool), ledger.head_of(pool)
    if (header.epoch, header.previous_hash) != expected:
        said = f"epoch {header.epoch} after {header.previous_hash}"
        raise ProtocolError(
            "bad_epoch", f"the file is of {said}, but the next one is {expected[0]} after {expected[1]}"
        )
    terms = history.contracts.pools.get_terms(pool)
    if header.units > terms.epoch_units:
        raise ProtocolError(
            "bad_epoch", f"epoch {header.epoch} has {header.units} units, but may have {terms.epoch_units}"
        )
    rewards: Mapping[Address, int] = {}
    if posted.newest is not None and before is not None:
        earlier = EpochFile.from_bytes(before, posted.newest.header)
        doubled = {leaf.receipt_hash for leaf in file.leaves} & {leaf.receipt_hash for leaf in earlier.leaves}
        if doubled:
            raise ProtocolError("bad_epoch", f"receipt {min(doubled)} is in epoch {earlier.epoch}, too")
        rewards = earlier.rewards
    elif posted.newest is not None:
        raise ProtocolError("bad_epoch", f"the file of epoch {posted.newest.epoch} is missing, whose rewards go on")
    now = history.client.get_block("latest").timestamp
    require_rewards(
        file,
        header,
        before=rewards,
        reward_per_million=history.read_prices(pool, posted.events, now=now).find(header.epoch),
        fees=terms.verdict_fees,
        validators=history.list_validators(pool) if header.verdicts else (),
        chain=history.contracts.deployment.chain_id,
        ledger=ledger.address,
    )
