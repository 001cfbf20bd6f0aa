"""Attestations: which epoch validators are to sign, and when enough of them have signed its header.

Validators sign one epoch at a time, because each header continues the chain's newest one.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from coordinator.db.models import EpochRow
from coordinator.db.repository import Repository
from coordinator.domain.settlement import Ledger, build_header
from covey.errors import ProtocolError
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address, Hash, PoolId

LATE_SECONDS = 60.0
"""Age in seconds from which an epoch without enough signatures is logged and is an alarm."""
ADVICE = (
    "Start the validators that have not signed, and look in their logs for why: epoch was not signed. One that is not "
    "listed must bond its stake with covey stake add."
)
"""What an operator can do about missing signatures."""
WARNED = "attestations_warned"
"""Name of the fact with the number of the newest epoch that was logged, plus 1."""


def find_awaiting(repository: Repository, ledger: Ledger) -> EpochHeader | None:
    """Return the header of the epoch that validators are to sign now. None if there is none.

    It is the oldest epoch that is not on chain, once it is closed.
    """
    if not ledger.header_quorum or repository.get_fact("closed"):
        return None
    oldest = next(iter(repository.list_unposted()), None)
    return None if oldest is None or not oldest.data_hash else build_header(oldest, ledger.pool)


def record_attestation(
    repository: Repository,
    ledger: Ledger,
    *,
    signed: EpochHeader | None,
    header_hash: Hash,
    validator: Address,
    signature: str,
) -> int:
    """Store a validator's signature, which was verified over the header `signed`. Return the number of its epoch.

    Raises ProtocolError("not_awaited") if no epoch with this header awaits signatures, for example because it was
    computed again.
    """
    header = find_awaiting(repository, ledger)
    if header is None or header != signed or header.compute_hash() != header_hash:
        raise ProtocolError("not_awaited", f"no epoch with the header {header_hash} awaits signatures", status=409)
    repository.put_attestation(header.epoch, header_hash, validator, signature)
    return header.epoch


def choose_quorum(
    signed: Mapping[Address, str], active: Collection[Address], *, quorum: int, with_spares: bool = False
) -> dict[Address, str] | None:
    """Return as many signatures of active validators as the ledger requires, or all. None if there are fewer.

    Spares cost gas. They help if a validator has unbonded since it signed.
    """
    counted = sorted(set(signed) & set(active), key=lambda each: int(each, 16))
    if len(counted) < quorum:
        return None
    return {each: signed[each] for each in (counted if with_spares else counted[:quorum])}


class Signers(NamedTuple):
    """Active validators, by whether they have signed the header of an epoch."""

    signed: list[Address]
    missing: list[Address]


def find_signers(repository: Repository, pool: PoolId, epoch: EpochRow, active: Collection[Address]) -> Signers:
    """Return which of the active validators have signed the header of a closed epoch, in ascending order."""
    signed = repository.find_attestations(epoch.number, build_header(epoch, pool).compute_hash())
    return Signers(signed=sorted(set(active) & set(signed)), missing=sorted(set(active) - set(signed)))


def find_quorum(
    repository: Repository, ledger: Ledger, epoch: EpochRow, active: Collection[Address], *, with_spares: bool
) -> dict[Address, str] | None:
    """Return the signatures with which an epoch can be posted. None while too few active validators have signed."""
    signed = repository.find_attestations(epoch.number, build_header(epoch, ledger.pool).compute_hash())
    return choose_quorum(signed, active, quorum=ledger.header_quorum, with_spares=with_spares)


def is_late(repository: Repository, epoch: EpochRow, *, now: float) -> bool:
    """Return whether an epoch has waited for longer than LATE_SECONDS and was not recorded by `record_warned`."""
    return now - epoch.closed_at > LATE_SECONDS and repository.get_fact(WARNED) <= epoch.number


def record_warned(repository: Repository, number: int) -> None:
    """Record that the wait for signatures over an epoch was logged."""
    repository.set_fact(WARNED, number + 1)
