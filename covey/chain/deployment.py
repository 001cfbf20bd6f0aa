"""Addresses of the contracts: a JSON file that the operator publishes and every process of a network reads.

The file contains no secrets. It contains the node's URL only if the URL is just a host, because a provider's URL has a
key in its path.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from eth_utils.address import is_checksum_address

from covey.errors import OperatorError
from covey.protocol.ids import Address, Hash, is_hash
from covey.runtime.files import write_atomically
from covey.runtime.urls import has_only_host, is_plain_url

CONTRACTS = {
    "PoolRegistry": "pool_registry",
    "NodeRegistry": "node_registry",
    "PolicyRegistry": "policy_registry",
    "StakeManager": "stake_manager",
    "EpochLedger": "epoch_ledger",
    "SlashingCourt": "slashing_court",
}
"""Names of a deployment's address fields by contract name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Addresses of one set of contracts on one chain."""

    chain_id: int
    rpc_url: str | None = None
    """URL of a JSON-RPC node of the chain. None means that each party uses its own node."""
    start_block: int
    """First block that can contain events of the contracts."""
    start_hash: Hash | None = None
    """Hash of block `start_block`, which distinguishes this chain from others with the same chain id.

    None if an older version wrote the file, or if the node had no final block. Then only chain ids are compared.
    """
    pool_registry: Address
    node_registry: Address
    policy_registry: Address
    stake_manager: Address
    epoch_ledger: Address
    slashing_court: Address
    token: Address
    """ERC-20 token that a devnet's pools use."""

    def get_contracts(self) -> dict[str, Address]:
        """Return the addresses of the contracts whose events the follower reads, by name. The token is not included."""
        return {name: getattr(self, field) for name, field in CONTRACTS.items()}

    def choose_node(self, own: str | None = None) -> str:
        """Return the URL of the node to use: `own`, or the deployment's if `own` is None.

        Raises OperatorError("no_rpc") if both are absent.
        """
        chosen = own or self.rpc_url
        if chosen:
            return chosen
        raise OperatorError(
            "no_rpc",
            f"neither the deployment file nor the settings have a URL of a node of chain {self.chain_id}",
            fix="Set the URL in the variable COVEY_RPC_URL, in the setting rpc_url of a role, or with covey join --rpc",
        )

    def without_secrets(self) -> Self:
        """Return a copy that can be published. It has no node URL, unless the URL is only a host."""
        return self if self.rpc_url is None or has_only_host(self.rpc_url) else replace(self, rpc_url=None)

    def save(self, path: Path) -> None:
        """Write the file without secrets and atomically, so that a reader sees either the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        published = asdict(self.without_secrets())
        write_atomically(path, json.dumps(published, indent=2, sort_keys=True).encode() + b"\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a deployment from a file.

        Raises OperatorError("no_deployment") if the file cannot be read, and OperatorError("bad_deployment") if it is
        not a deployment.
        """
        fix = "Use the deployment.json that covey deploy or covey devnet up has written"
        try:
            values = json.loads(path.read_text())
            loaded = cls(**values)
        except OSError as error:
            pool = path.parent.parent
            commands = pool / "processes.toml"
            if isinstance(error, FileNotFoundError) and commands.is_file() and b"devnet up" in commands.read_bytes():
                fix = f"Start the pool's devnet, which writes this file, with covey up {pool}"
            raise OperatorError(
                "no_deployment", f"the deployment file {path} cannot be read: {error.strerror}", fix=fix
            ) from error
        except (ValueError, TypeError) as error:
            raise OperatorError("bad_deployment", f"{path} is not a valid deployment file: {error}", fix=fix) from error
        wrong = [name for name, value in asdict(loaded).items() if not _is_value(name, value)]
        if wrong:
            raise OperatorError(
                "bad_deployment", f"the deployment file {path} has invalid values for {', '.join(wrong)}", fix=fix
            )
        return loaded


def _is_value(name: str, value: object) -> bool:
    """Return whether a value is valid for a field of a deployment file."""
    if name in ("chain_id", "start_block"):
        return type(value) is int and value >= 0  # isinstance would accept True.
    if name == "rpc_url":
        return value is None or (isinstance(value, str) and is_plain_url(value))
    if name == "start_hash":
        return value is None or (isinstance(value, str) and is_hash(value))
    return is_checksum_address(value)
