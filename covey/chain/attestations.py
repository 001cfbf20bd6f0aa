"""Reads the attestations of a posted epoch from the transaction that posted it, because no event repeats them."""

from collections.abc import Iterable
from typing import Any

from covey.chain import abi_codec
from covey.chain.events import EpochPosted
from covey.chain.json_rpc import ChainClient
from covey.errors import ProtocolError
from covey.protocol.eip712 import Domain, recover_signer
from covey.protocol.epochs import EpochHeader
from covey.protocol.ids import Address


def read_attestations(client: ChainClient, posted: EpochPosted, ledger: Domain) -> dict[Address, str]:
    """Return the signatures over the header of a posted epoch, by the accounts that they recover.

    Empty if the transaction does not call the ledger itself, for example because another contract posted the epoch, or
    if the node shows another transaction. `ledger` is the domain in which validators sign headers. Raises the errors of
    `ChainClient.find_input`.
    """
    post = abi_codec.load_artifact("EpochLedger").functions["post"]
    data = client.find_input(posted.transaction_hash, to=ledger.contract)
    if data is None or data[:4] != post.digest[:4]:
        return {}
    try:
        header, attestations = abi_codec.decode_values(post.inputs, data[4:])
    except ValueError:
        return {}
    if EpochHeader(**dict(zip(EpochHeader.TYPES, header, strict=True))) != posted.header:
        return {}
    return dict(_recover(posted.header, ledger, attestations))


def _recover(header: EpochHeader, ledger: Domain, attestations: Iterable[Any]) -> Iterable[tuple[Address, str]]:
    for r, vs in attestations:
        packed = int(vs, 16)
        s, v = packed & (1 << 255) - 1, 27 + (packed >> 255)
        signature = f"{r}{s:064x}{v:02x}"
        try:
            yield recover_signer(header, ledger, signature), signature
        except ProtocolError:
            continue  # The ledger has skipped it, too.
