"""The committed vectors are those of the code; the Solidity test Vectors.t.sol holds the contracts to the same."""

import hashlib
import json
import math

import pytest

from covey.protocol import eip712, messages
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.ids import hash_to_bytes
from covey.protocol.merkle import REWARD_LEAF_TYPES, is_in_tree
from covey.protocol.params import PoolParams
from covey.protocol.policy_record import PolicyRecord
from tests.vectors.make import HERE, build_files
from tests.vectors.npm import build_trees

pytestmark = pytest.mark.unit


def test_vectors__committed_files__are_what_the_script_makes():
    for path, text in build_files().items():
        assert path.read_text() == text, f"{path.name} differs: run python -m tests.vectors.make"
    assert {path.name for path in HERE.glob("*.json")} == {"losses.json"} | {  # of tests/vectors/losses.py
        path.name for path in build_files() if path.suffix == ".json"
    }


def test_messages__read_from_the_file__have_the_hashes_that_stand_there():
    file = json.loads((HERE / "messages.json").read_text())
    domain = eip712.Domain(chain_id=int(file["domain"]["chain_id"]), contract=file["domain"]["contract"])
    for name, rows in file["messages"].items():
        kind = getattr(messages, name)
        assert len(rows) == 3
        for row in rows:
            values = {k: int(v) if kind.TYPES[k].startswith("uint") else v for k, v in row["fields"].items()}
            assert eip712.compute_struct_hash(kind(**values)) == row["struct_hash"]
            assert eip712.compute_digest(kind(**values), domain) == row["digest"]


def test_messages__receipt_of_zeros__by_another_implementation():
    """Computed once with eth_abi and Keccak alone, without eth-account."""
    from eth_abi.abi import encode
    from eth_utils.crypto import keccak

    kind = (
        "Receipt(uint256 pool,uint256 task,uint256 lease,address node,address contributor,uint64 policyVersion,"
        "bytes32 workKey,uint32 groups,uint64 units,uint64 deadline)"
    )
    expected = keccak(encode(["bytes32"] + ["uint256"] * 10, [keccak(text=kind), *[0] * 10]))
    file = json.loads((HERE / "messages.json").read_text())
    assert file["messages"]["Receipt"][1]["struct_hash"] == "0x" + expected.hex()


def test_execution_contracts__read_from_the_file__have_the_digests_that_stand_there():
    """The digest is computed from the text alone, as any other implementation would."""
    file = json.loads((HERE / "execution_contracts.json").read_text())
    for row in file["contracts"]:
        assert ExecutionContract.model_validate_json(row["text"]).digest == row["digest"]
        assert "0x" + hashlib.sha256(row["text"].encode()).hexdigest() == row["digest"]


def test_drawn_rows__by_another_implementation__are_those_of_the_file():
    """Computed with eth_abi and Keccak alone."""
    from eth_abi.packed import encode_packed
    from eth_utils.crypto import keccak

    for row in json.loads((HERE / "seeds.json").read_text())["drawn_rows"]:
        hashes = hash_to_bytes(row["receipt"]), hash_to_bytes(row["block"])
        packed = [
            encode_packed(["string", "bytes32", "bytes32", "uint256"], ["covey-rows-1", *hashes, i])
            for i in range(row["rows"])
        ]
        ranks = [keccak(each) for each in packed]
        assert [ranks.index(rank) for rank in sorted(ranks)][: row["count"]] == row["drawn"]


def test_sums__by_another_implementation__are_those_of_the_file():
    """By the formula of docs/protocol.md."""
    file = json.loads((HERE / "sums.json").read_text())
    assert "0x" + hashlib.sha256(file["bundle"]["text"].encode()).hexdigest() == file["bundle"]["hash"]
    pooled = file["thresholds"]["logprob"]
    mean, variance, largest, seen = (pooled[name] for name in ("mean", "variance", "largest", "items"))

    def deviate(items: int, scale: float) -> float:
        return largest * scale / 3 + math.sqrt((largest * scale / 3) ** 2 + 2 * items * variance * scale)

    for case in file["cases"]:
        totals, quorum = sorted(case["totals"]), case["quorum"]
        if len(totals) < quorum:
            assert case["standings"] == []
            continue
        below = min(quorum - 1, len(totals) - quorum)
        scale, items = math.log(10_000 * quorum / 1e-6), case["items"]
        true_mean = (mean + deviate(seen, math.log(1e7)) / seen) * (1 + case["allowance"])
        (standing,) = case["standings"]
        assert (standing["statistic"], standing["items"]) == ("logprob", items)
        assert standing["total"] == totals[below]
        assert standing["limit"] == pytest.approx(items * true_mean + deviate(items, scale), rel=1e-9)


def test_rewards__read_from_the_file__lie_in_the_tree():
    file = json.loads((HERE / "rewards.json").read_text())
    for row in file["rewards"]:
        assert is_in_tree(file["root"], hash_to_bytes(row["leaf"]), row["proof"])


def test_policies__read_from_the_file__have_the_hashes_that_stand_there():
    file = json.loads((HERE / "policies.json").read_text())
    records = [PolicyRecord.from_bytes(row["text"].encode(), row["hash"]) for row in file["records"]]
    assert [(record.pool, record.step) for record in records] == [(3, 0), (3, 1)]
    assert records[1].parent == file["records"][0]["hash"]
    for row in file["params"]:
        assert PoolParams.from_text(row["text"], row["hash"]).name == "vectors"


def test_rewards__by_the_package_of_openzeppelin__have_the_same_root_and_proofs():
    file = json.loads((HERE / "rewards.json").read_text())
    rows = [
        [file["chain"], file["ledger"], file["pool"], row["contributor"], row["cumulative"]] for row in file["rewards"]
    ]
    (tree,) = build_trees(REWARD_LEAF_TYPES, [rows])
    assert tree["root"] == file["root"]
    assert tree["proofs"] == [row["proof"] for row in file["rewards"]]
