"""Tests of `make halmos` that need neither halmos nor a compiler: its list, and how it reads reports."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.contracts.mutants import apply
from tests.proofs.prove import PROOFS, Outcome, ProofError, Property, list_imports, read_properties, read_report

ROOT = Path(__file__).resolve().parents[2]
LIST = PROOFS / "proofs.toml"


def list_functions(contract: str) -> set[str]:
    return set(re.findall(r"function check_(\w+)\(", (PROOFS / f"{contract}.sol").read_text()))


def write_list(path: Path, *names: str) -> Path:
    fields = ("contract", "promise", "file", "find", "replace")
    rows = [f'[[property]]\nname = "{name}"\n' + "".join(f'{field} = "x"\n' for field in fields) for name in names]
    path.write_text("".join(rows))
    return path


@pytest.mark.unit
def test_proofs__shipped_list__each_twin_changes_one_place():
    properties = read_properties(LIST)
    assert len(properties) >= 12
    for each in properties:
        source = (ROOT / each.file).read_text()
        assert apply(each.twin, source) != source, each.name


@pytest.mark.unit
def test_proofs__shipped_list__has_every_function_and_no_other():
    listed: dict[str, set[str]] = {}
    for each in read_properties(LIST):
        listed.setdefault(each.contract, set()).add(each.name)
    assert listed == {path.stem: list_functions(path.stem) for path in PROOFS.glob("*Proofs.sol")}


@pytest.mark.unit
def test_proofs__shipped_list__is_in_the_docs_with_its_words():
    text = (ROOT / "docs" / "contract-assurance.md").read_text()
    rows = [f"| {each.promise} | `{each.contract}` {each.name} |" for each in read_properties(LIST)]
    assert [row for row in rows if row not in text] == []


@pytest.mark.unit
def test_foundry__settings_of_the_compiler__are_those_of_hardhat():
    forge = tomllib.loads((PROOFS / "foundry.toml").read_text())["profile"]["default"]
    hardhat = (ROOT / "hardhat.config.js").read_text()
    runs = re.search(r"optimizer: \{ enabled: isOptimized, runs: ([\d_]+) \}", hardhat)
    assert runs is not None
    assert forge["optimizer"] is True
    assert forge["optimizer_runs"] == int(runs[1])
    assert f'evmVersion: "{forge["evm_version"]}"' in hardhat
    assert f'bytecodeHash: "{forge["bytecode_hash"]}"' in hardhat


@pytest.mark.unit
def test_list_imports__ledger_proofs__with_the_settings_below():
    assert list_imports("LedgerProofs.sol") == {"LedgerProofs.sol", "LedgerSetting.sol", "Setting.sol"}


@pytest.mark.unit
def test_read_properties__same_name_twice__refused(tmp_path):
    assert [each.name for each in read_properties(write_list(tmp_path / "a.toml", "a", "b"))] == ["a", "b"]
    with pytest.raises(ProofError, match="same name"):
        read_properties(write_list(tmp_path / "b.toml", "a", "a"))


@pytest.mark.unit
def test_read_report__all_kinds__outcomes_with_counterexamples():
    results = [
        {"name": "check_holds(uint96)", "exitcode": 0, "num_bounded_loops": 0, "time": [2.04, 2.0, 0.04]},
        {"name": "check_loops(uint96)", "exitcode": 0, "num_bounded_loops": 1, "time": [1.0, 1.0, 0.0]},
        {"name": "check_fails(uint96,bool)", "exitcode": 1, "num_bounded_loops": 0, "time": [3.0, 2.0, 1.0]},
        {"name": "check_always_fails()", "exitcode": 1, "num_bounded_loops": 0, "time": [3.0, 2.0, 1.0]},
        {"name": "check_waits(uint96)", "exitcode": 2, "num_bounded_loops": 0, "time": None},
        {"name": "check_reverts(uint96)", "exitcode": 4, "num_bounded_loops": 0, "time": [0.5, 0.5, 0.0]},
    ]
    printed = (
        "\x1b[31mCounterexample: \n    p_bonded_uint96_0f8bca2_00 = 0x10\n    p_isHeavy_bool_1c2d3e4_01 = 0x01\x1b[0m\n"
        "\x1b[31m[FAIL]\x1b[0m check_fails(uint96,bool) (paths: 3, time: 3.0s, bounds: [])\n"
        "\x1b[31mCounterexample: ∅\x1b[0m\n"
        "\x1b[31m[FAIL]\x1b[0m check_always_fails() (paths: 3, time: 3.0s, bounds: [])\n"
        "\x1b[32m[PASS]\x1b[0m check_holds(uint96) (paths: 3, time: 2.0s, bounds: [])\n"
    )
    assert read_report(json.dumps({"test_results": {"A.sol:A": results}}), printed) == {
        "holds": Outcome(text="proved", seconds=2.0),
        "loops": Outcome(text="loops are not unrolled", seconds=1.0),
        "fails": Outcome(text="counterexample", seconds=3.0, counterexample="bonded = 16, isHeavy = 1"),
        "always_fails": Outcome(text="counterexample", seconds=3.0, counterexample="any arguments"),
        "waits": Outcome(text="timeout", seconds=0.0),
        "reverts": Outcome(text="no path passes", seconds=0.5),
    }


@pytest.mark.unit
def test_property__twin__breaks_the_same_promise():
    each = Property(name="n", contract="C", promise="p", file="contracts/A.sol", find="a;", replace="b;")
    assert apply(each.twin, "x; a; y;") == "x; b; y;"
    assert each.twin.guard == "p"
