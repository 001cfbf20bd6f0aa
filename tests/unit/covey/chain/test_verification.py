import json
import re
from pathlib import Path

import pytest

from covey.chain import verification
from covey.chain.deploy_journal import DeployedContract, DeployJournal, DeployRecord
from covey.chain.verification import SETTINGS, build_input, find_checkout, locate_source, write_verification
from covey.errors import OperatorError

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[4]
A = "0x52908400098527886E0F7030069857D2E4169EE7"
HASH = "0x" + "ab" * 32


def test_settings__optimizer_and_version__are_those_of_hardhat():
    hardhat = (ROOT / "hardhat.config.js").read_text()
    runs = re.search(r"runs: ([\d_]+) \}", hardhat)
    assert runs is not None
    assert SETTINGS["optimizer"] == {"enabled": True, "runs": int(runs[1])}
    assert f'evmVersion: "{SETTINGS["evmVersion"]}"' in hardhat
    assert f'bytecodeHash: "{SETTINGS["metadata"]["bytecodeHash"]}"' in hardhat
    assert f'version: "{verification.COMPILER[1:].partition("+")[0]}"' in hardhat


def test_locate_source__every_contract__is_a_file():
    for name in verification.CONTRACT_NAMES:
        assert (ROOT / locate_source(name)).is_file(), name


def test_build_input__relative_and_package_imports__are_followed(tmp_path: Path):
    files = {
        "contracts/PoolRegistry.sol": 'import {A} from "@lib/a/A.sol";\nimport {B} from\n    "./parts/B.sol";\n',
        "contracts/parts/B.sol": 'import "../C.sol";\n',
        "contracts/C.sol": "contract C {}\n",
        "node_modules/@lib/a/A.sol": 'import {D} from "../D.sol";\n',
        "node_modules/@lib/D.sol": "contract D {}\n",
        "contracts/Other.sol": "contract Other {}\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    made = build_input(tmp_path, ["PoolRegistry"])
    expected = {name.removeprefix("node_modules/"): {"content": text} for name, text in files.items()}
    del expected["contracts/Other.sol"]
    assert made["sources"] == expected


def test_write_verification__installed_package__writes_all_but_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    contract = DeployedContract(name="NodeRegistry", address=A, nonce=4, arguments="00ff", attempts=(), code_hash=HASH)
    record = DeployRecord(chain_id=7, deployer=A, token=A, start_block=3, start_hash=None, first_nonce=3)
    DeployJournal(tmp_path / "j").save(record.with_contract(contract))
    monkeypatch.setattr(verification, "find_checkout", lambda: None)
    assert write_verification(tmp_path / "out", tmp_path / "j") is False
    assert json.loads((tmp_path / "out" / "NodeRegistry.json").read_text()) == {
        "address": A,
        "chain_id": 7,
        "code_hash": HASH,
        "compiler": "v0.8.30+commit.73712a01",
        "constructor_arguments": "00ff",
        "contract": "contracts/NodeRegistry.sol:NodeRegistry",
        "input": "standard-input.json",
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["NodeRegistry.json"]


def test_write_verification__no_journal__refused(tmp_path: Path):
    with pytest.raises(OperatorError, match="bad_journal"):
        write_verification(tmp_path / "out", tmp_path / "j")


def test_find_checkout__this_repository__has_contracts_and_their_imports():
    assert find_checkout() == ROOT
