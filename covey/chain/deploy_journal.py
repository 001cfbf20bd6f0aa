"""The journal of a deployment: what was signed, before it is sent, so that an interrupted deployment can be resumed.

The nonces of all contracts follow from the first one, so the addresses are known before anything is sent. The file has
no secrets: signed transactions are public once they are sent.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from covey.errors import OperatorError
from covey.protocol.ids import Address, Hash
from covey.runtime.files import write_atomically


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployAttempt:
    """One signed transaction that creates a contract."""

    hash: Hash
    raw: str
    """The signed transaction in hexadecimal."""
    max_fee: int
    """Maximum fee in wei per gas."""
    priority_fee: int
    """Priority fee in wei per gas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployedContract:
    """One contract of a deployment. Example: name="StakeManager"."""

    name: str
    address: Address
    nonce: int
    arguments: str
    """Constructor arguments, ABI-encoded, in hexadecimal without 0x."""
    attempts: tuple[DeployAttempt, ...]
    """Signed transactions with this nonce, oldest first. At most one of them is ever mined."""
    code_hash: Hash | None = None
    """keccak256 of the code at the address. None until the contract was seen on the chain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeployRecord:
    """What a journal holds."""

    chain_id: int
    deployer: Address
    token: Address | None
    """Token that the pools use. None if the deployment creates a test token."""
    start_block: int
    start_hash: Hash | None
    first_nonce: int
    """Nonce of the first contract. Each later contract has the next one."""
    contracts: tuple[DeployedContract, ...] = ()

    def find(self, name: str) -> DeployedContract | None:
        return next((each for each in self.contracts if each.name == name), None)

    def with_contract(self, contract: DeployedContract) -> Self:
        """Return a copy with a contract, which replaces one of the same name."""
        others = tuple(each for each in self.contracts if each.name != contract.name)
        return replace(self, contracts=(*others, contract))


class DeployJournal:
    """A journal in a file, or in memory if the path is None."""

    def __init__(self, path: Path | None) -> None:
        """Open a journal.

        Raises OperatorError("bad_journal") if the file is not one, and OperatorError("no_folder") if it cannot be read.
        """
        self._path = path
        self._record = None if path is None else _read(path)

    @property
    def record(self) -> DeployRecord | None:
        """What the journal holds. None if no deployment has begun."""
        return self._record

    def save(self, record: DeployRecord) -> None:
        """Keep a record. It is on disk when this returns. Raises OperatorError("no_folder") if it cannot be written."""
        if self._path is not None:
            try:
                write_atomically(self._path, json.dumps(asdict(record), indent=2).encode() + b"\n")
            except OSError as error:
                raise _refuse(self._path, "written", error) from error
        self._record = record


def _read(path: Path) -> DeployRecord | None:
    try:
        values = json.loads(path.read_text())
        contracts = tuple(
            DeployedContract(**each | {"attempts": tuple(DeployAttempt(**attempt) for attempt in each["attempts"])})
            for each in values["contracts"]
        )
        return DeployRecord(**values | {"contracts": contracts})
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refuse(path, "read", error) from error
    except (ValueError, TypeError, KeyError) as error:
        raise OperatorError(
            "bad_journal",
            f"{path} is not the journal of a deployment: {error}",
            fix="Restore the file, or deploy again with another --out",
        ) from error


def _refuse(path: Path, action: str, error: OSError) -> OperatorError:
    what = f"{path} cannot be {action}: {error.strerror}"
    return OperatorError("no_folder", what, fix="Choose a file in a folder that you can write to")
