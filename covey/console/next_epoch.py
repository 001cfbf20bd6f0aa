"""The file of an epoch that is not posted yet: what a validator checks before it signs, and what is posted."""

from pathlib import Path
from typing import TYPE_CHECKING

from covey.errors import OperatorError, ProtocolError
from covey.network.epoch_check import read_posted, require_next
from covey.protocol.api.common import MAX_EPOCH_BYTES
from covey.protocol.eip712 import Domain, recover_signer
from covey.protocol.epoch_file import EpochFile
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    `before` is the file of the newest earlier epoch that stands. Raises OperatorError("no_earlier_file") if it is
    needed, and the errors of `covey.network.epoch_check.require_next`.
    """
    posted, data = read_posted(account.history, account.pool), None
    if posted.newest is not None:
        if before is None:
            raise OperatorError(
                "no_earlier_file",
                f"the rewards of epoch {header.epoch} continue those of epoch {posted.newest.epoch}",
                fix="Add --before FILE with the file of that epoch",
            )
        data = _read(before)
    require_next(account.history, file, header, posted=posted, before=data)


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
