"""Where the contracts are: one JSON file that every process of a network reads."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from eth_utils.address import is_checksum_address

from covey.errors import OperatorError
from covey.files import write_atomically
from covey.protocol.ids import Address

CONTRACTS = {
    "PoolRegistry": "pool_registry",
    "NodeRegistry": "node_registry",
    "PolicyRegistry": "policy_registry",
    "StakeManager": "stake_manager",
    "EpochLedger": "epoch_ledger",
    "SlashingCourt": "slashing_court",
}
"""Fields of a deployment by the names of the contracts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Addresses of one set of contracts on one chain."""

    chain_id: int
    rpc_url: str
    start_block: int
    """No event is older."""
    pool_registry: Address
    node_registry: Address
    policy_registry: Address
    stake_manager: Address
    epoch_ledger: Address
    slashing_court: Address
    token: Address
    """The ERC-20 that a devnet's pools use."""

    def get_contracts(self) -> dict[str, Address]:
        """Addresses by the names of the contracts: those whose events the follower reads, without the token."""
        return {name: getattr(self, field) for name, field in CONTRACTS.items()}

    def save(self, path: Path) -> None:
        """Write the file in one piece: a reader sees the old one or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(self), indent=2, sort_keys=True).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raise OperatorError when the file is missing or is not a deployment."""
        fix = "Name the deployment file that the network was set up with"
        try:
            values = json.loads(path.read_text())
            loaded = cls(**values)
        except OSError as error:
            raise OperatorError("no_deployment", f"{path} cannot be read: {error.strerror}", fix=fix) from error
        except (ValueError, TypeError) as error:
            raise OperatorError("bad_deployment", f"{path} is not a deployment: {error}", fix=fix) from error
        wrong = [name for name in (*loaded.get_contracts().values(), loaded.token) if not is_checksum_address(name)]
        if wrong or not isinstance(loaded.chain_id, int) or not isinstance(loaded.start_block, int):
            raise OperatorError("bad_deployment", f"{path} holds a wrong address or number", fix=fix)
        return loaded
