"""What an explorer needs to verify the sources of a deployment: constructor arguments and the compiler's input.

The compiler's input is put together from the sources in a checkout of Covey, because an installed package has none.
"""

import json
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path

import covey
from covey.chain.abi_codec import CONTRACT_NAMES
from covey.chain.deploy_journal import DeployJournal
from covey.errors import OperatorError
from covey.runtime.files import write_atomically

COMPILER = "v0.8.30+commit.73712a01"
"""Version of solc as explorers name it."""
SETTINGS = {
    "evmVersion": "cancun",
    "optimizer": {"enabled": True, "runs": 6_000},
    "metadata": {"bytecodeHash": "none"},
}
"""Settings of the compiler. They are those of hardhat.config.js."""
INPUT_FILE = "standard-input.json"
_IMPORT = re.compile(r'(?:from|import)\s+"([^"]+)"')


def locate_source(name: str) -> str:
    """Return the source of a contract as the compiler names it, for example "contracts/StakeManager.sol"."""
    return f"contracts/devnet/{name}.sol" if name == "TestToken" else f"contracts/{name}.sol"


def find_checkout() -> Path | None:
    """Return the checkout that this package runs from. None if it has no contracts or none of their imports."""
    root = Path(covey.__file__).resolve().parent.parent
    needed = (root / "contracts", root / "node_modules" / "@openzeppelin" / "contracts")
    return root if all(folder.is_dir() for folder in needed) else None


def build_input(checkout: Path, names: Sequence[str] = CONTRACT_NAMES) -> dict[str, object]:
    """Return the standard JSON input of the compiler for some contracts, with every source that they import."""
    sources: dict[str, str] = {}
    waiting = [locate_source(name) for name in names]
    while waiting:
        unit = waiting.pop()
        if unit in sources:
            continue
        text = (checkout / "node_modules" / unit if unit.startswith("@") else checkout / unit).read_text()
        sources[unit] = text
        here = posixpath.dirname(unit)
        for imported in _IMPORT.findall(text):
            is_relative = imported.startswith(".")
            waiting.append(posixpath.normpath(posixpath.join(here, imported)) if is_relative else imported)
    return {
        "language": "Solidity",
        "sources": {unit: {"content": sources[unit]} for unit in sorted(sources)},
        "settings": SETTINGS | {"outputSelection": {"*": {"*": ["abi", "evm.bytecode", "evm.deployedBytecode"]}}},
    }


def write_verification(folder: Path, journal: Path) -> bool:
    """Write a file for each contract in a journal, and the compiler's input if this is a checkout.

    Returns whether the compiler's input was written. Raises OperatorError("bad_journal") if there is no journal.
    """
    record = DeployJournal(journal).record
    if record is None:
        raise OperatorError("bad_journal", f"{journal} does not exist", fix="Run covey deploy with this --out first")
    folder.mkdir(parents=True, exist_ok=True)
    for contract in record.contracts:
        fields = {
            "address": contract.address,
            "chain_id": record.chain_id,
            "code_hash": contract.code_hash,
            "compiler": COMPILER,
            "constructor_arguments": contract.arguments,
            "contract": f"{locate_source(contract.name)}:{contract.name}",
            "input": INPUT_FILE,
        }
        write_atomically(folder / f"{contract.name}.json", json.dumps(fields, indent=2).encode() + b"\n")
    checkout = find_checkout()
    if checkout is None:
        return False
    write_atomically(folder / INPUT_FILE, json.dumps(build_input(checkout)).encode() + b"\n")
    return True
