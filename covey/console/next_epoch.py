"""The file of an epoch that is not posted yet: what a validator checks before it signs, and what is posted."""

from pathlib import Path
from typing import TYPE_CHECKING

from covey.errors import OperatorError, ProtocolError
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.eip712 import Domain, recover_signer
from covey.protocol.epoch_file import EpochFile, require_rewards
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from covey.console.account import Account


def read_next_epoch(account: "Account", path: Path) -> tuple[EpochFile, EpochHeader]:
    """Read the file of an epoch, and return it with its header.

    Raises OperatorError("bad_epoch_file") if it cannot be read, and ProtocolError("bad_epoch") if it is malformed or
    is of another pool.
    """
    ledger = account.contracts.ledger.address
    file, header = EpochFile.from_unposted(_read(path), chain=account.deployment.chain_id, ledger=ledger)
    if header.pool != account.pool:
        raise ProtocolError("bad_epoch", f"the file is of pool {header.pool}, but this is pool {account.pool}")
    return file, header


def require_true(account: "Account", file: EpochFile, header: EpochHeader, *, before: Path | None) -> None:
    """Raise an error unless the epoch continues the chain's epochs and its rewards follow from its work and verdicts.

    It does not check that validators gave the verdicts that the epoch counts.

    `before` is the file of the newest earlier epoch that stands. Raises ProtocolError("bad_epoch") if the epoch is not
    the next one, has more units than the terms allow, or repeats work of `before`. Raises
    ProtocolError("false_rewards"), and OperatorError("no_earlier_file") if `before` is needed.
    """
    pool, ledger = account.pool, account.contracts.ledger
    expected = ledger.epochs_of(pool), ledger.head_of(pool)
    if (header.epoch, header.previous_hash) != expected:
        said = f"epoch {header.epoch} after {header.previous_hash}"
        raise ProtocolError(
            "bad_epoch", f"the file is of {said}, but the next one is {expected[0]} after {expected[1]}"
        )
    terms = account.contracts.pools.get_terms(pool)
    if header.units > terms.epoch_units:
        raise ProtocolError(
            "bad_epoch", f"epoch {header.epoch} has {header.units} units, but may have {terms.epoch_units}"
        )
    posted = account.history.list_epochs(pool)
    standing = [each for each in posted if ledger.is_posted(pool, each.record)]
    rewards: Mapping[Address, int] = {}
    if standing:
        if before is None:
            raise OperatorError(
                "no_earlier_file",
                f"the rewards of epoch {header.epoch} continue those of epoch {standing[-1].epoch}",
                fix="Add --before FILE with the file of that epoch",
            )
        earlier = EpochFile.from_bytes(_read(before), standing[-1].header)
        doubled = {leaf.receipt_hash for leaf in file.leaves} & {leaf.receipt_hash for leaf in earlier.leaves}
        if doubled:
            raise ProtocolError("bad_epoch", f"receipt {min(doubled)} is in epoch {earlier.epoch}, too")
        rewards = earlier.rewards
    require_rewards(
        file,
        header,
        before=rewards,
        reward_per_million=account.history.read_prices(pool, posted, now=account.get_time()).find(header.epoch),
        fees=terms.verdict_fees,
        validators=account.history.list_validators(pool) if header.verdicts else (),
        chain=account.deployment.chain_id,
        ledger=ledger.address,
    )


def get_domain(account: "Account") -> Domain:
    """Return the domain in which validators sign headers."""
    return Domain(chain_id=account.deployment.chain_id, contract=account.contracts.ledger.address)


def recover_validators(account: "Account", header: EpochHeader, signatures: "Sequence[str]") -> dict[Address, str]:
    """Return the signatures by their signers. Raises ProtocolError("bad_signature") if a signer is not a validator."""
    found = {recover_signer(header, get_domain(account), signature): signature for signature in signatures}
    for signer in found:
        if not account.contracts.pools.is_validator(account.pool, signer):
            raise ProtocolError(
                "bad_signature", f"a signature is by {signer}, which is not a validator, or is over another epoch"
            )
    return found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_EPOCH_BYTES + 1)
    except OSError as error:
        raise OperatorError(
            "bad_epoch_file", f"{path} cannot be read: {error}", fix="Use the file of an epoch as JSON"
        ) from error
    if len(data) > MAX_EPOCH_BYTES:
        raise OperatorError(
            "bad_epoch_file", f"{path} is larger than {MAX_EPOCH_BYTES} bytes", fix="Use the file of an epoch as JSON"
        )
    return data
