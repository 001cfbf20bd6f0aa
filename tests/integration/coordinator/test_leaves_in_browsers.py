"""The script that checks leaves in a viewer's browser hashes as Python does. Node runs it here."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coordinator.pages.pages_application import OWN_ASSETS
from covey.protocol.merkle import MerkleTree
from tests.architecture.tree import ROOT

pytestmark = pytest.mark.integration
VECTORS = json.loads((ROOT / "tests" / "vectors" / "epochs.json").read_text())


def run(expression: str, value: Any) -> Any:
    """Evaluate an expression of `leaves`, the functions of the script, and of `value`."""
    node = shutil.which("node")
    assert node is not None
    script = json.dumps(str(OWN_ASSETS / "leaves.js"))
    program = (
        f"require('vm').runInThisContext(require('fs').readFileSync({script}, 'utf8'));"
        f"const value = {json.dumps(value)}; console.log(JSON.stringify({expression}));"
    )
    done = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


@pytest.mark.parametrize(("kind", "function"), [("WorkLeaf", "hashLeaf"), ("EpochHeader", "hashHeader")])
def test_script__vectors__hashes_as_the_contract_does(kind: str, function: str):
    expression = f"value.map((each) => '0x' + leaves.{function}(Object.values(each.fields)))"
    assert run(expression, VECTORS[kind]) == [each["hash"] for each in VECTORS[kind]]


def test_script__proofs_of_seven_leaves__lead_to_the_root():
    leaves = [bytes([i]) * 32 for i in range(7)]
    tree = MerkleTree(leaves)
    value = [{"leaf": leaf.hex(), "proof": tree.get_proof(leaf)} for leaf in leaves]
    assert run("value.map((each) => '0x' + leaves.climb(each.leaf, each.proof))", value) == [tree.root] * 7


def test_script__inputs_around_a_block__are_padded_as_python_pads(tmp_path: Path):
    from eth_hash.auto import keccak

    inputs = [bytes(range(size % 256)) * (1 + size // 256) for size in (1, 135, 136, 137, 255)]
    assert run("value.map((each) => leaves.keccak(each))", [each.hex() for each in inputs]) == [
        keccak(each).hex() for each in inputs
    ]
