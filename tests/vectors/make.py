"""Makes the vectors, which all parties must compute alike: JSON for everyone, Solidity for the contracts' tests.

Run `python -m tests.vectors.make` after a change of the protocol; tests fail while the committed files differ from it.
Numbers are decimal texts, because JSON's are not exact everywhere.
"""

import json
from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from covey.protocol import eip712, merkle, seeding
from covey.protocol.api.common import ReceiptBody
from covey.protocol.eip712 import Domain
from covey.protocol.epochs import EpochHeader, WorkLeaf
from covey.protocol.evidence import Bundle, EngineFacts
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.ids import ZERO_HASH, Address, Hash, LeaseId, PoolId, Step, TaskId, hash_from_bytes
from covey.protocol.messages import Countersignature, NodeRegistration, Receipt, Verdict
from covey.protocol.params import EnvironmentParams, PoolParams
from covey.protocol.pieces import compute_digest
from covey.protocol.policy_record import FileRow, PolicyRecord, TensorRow
from covey.protocol.prices import compute_reward
from covey.protocol.running_sums import PER_WINDOW, STATISTICS, ItemSum, Sums, compare
from covey.protocol.thresholds import Pooled, Thresholds
from covey.protocol.verdict import Decision, Reason

HERE = Path(__file__).resolve().parent
SOLIDITY = HERE.parent / "contracts" / "VectorData.sol"
DOMAIN = Domain(chain_id=31337, contract=Address("0x5FbDB2315678afecb367f032d93F642f64180aa3"))
ALICE, BOB = (
    Address("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"),
    Address("0x70997970C51812dc3A010C7d01b50e0d17dc79C8"),
)
LOWEST, HIGHEST = Address("0x" + "00" * 20), Address("0xFFfFfFffFFfffFFfFFfFFFFFffFFFffffFfFFFfF")
MESSAGES = (NodeRegistration, Receipt, Countersignature, Verdict)
WIDTHS = {
    "WorkLeaf": {"task": 256, "policy_version": 64, "signed_at": 64, "outcome": 8, "reason": 8, "units": 64},
}


def _list_values(kind: Any) -> Iterator[Any]:
    """Three of a kind: an ordinary one, all zero, all ones."""
    names = [field.name for field in fields(kind)]
    for choose in (_ordinary, lambda place, bits: 0, lambda place, bits: (1 << bits) - 1):
        values: dict[str, Any] = {}
        for place, name in enumerate(names, 1):
            solidity = _find_type(kind, name)
            number = choose(place, 160 if solidity == "address" else int(solidity.lstrip("uintbyes") or 256))
            if solidity == "address":
                values[name] = {0: LOWEST, (1 << 160) - 1: HIGHEST}.get(number, (ALICE, BOB)[place % 2])
            elif solidity == "bytes32":
                number = choose(place, 256)
                values[name] = hash_from_bytes(bytes([number]) * 32 if number < 256 else number.to_bytes(32, "big"))
            else:
                values[name] = number
        yield kind(**values)


def _ordinary(place: int, bits: int) -> int:
    return 17 * place % 251 + (1 << bits - 1 if bits == 64 else 0)


def _find_type(kind: Any, name: str) -> str:
    if hasattr(kind, "TYPES"):
        return str(kind.TYPES[name])
    width = WIDTHS[kind.__name__].get(name)
    return f"uint{width}" if width else "address" if name in ("node", "contributor") else "bytes32"


def _to_json(value: Any) -> dict[str, str]:
    return {field.name: str(getattr(value, field.name)) for field in fields(value)}


def build_messages() -> dict[str, Any]:
    """Every signed message with its struct hash and its digest under one domain."""
    kinds = {
        kind.__name__: [
            {
                "fields": _to_json(message),
                "struct_hash": eip712.compute_struct_hash(message),
                "digest": eip712.compute_digest(message, DOMAIN),
            }
            for message in _list_values(kind)
        ]
        for kind in MESSAGES
    }
    return {"domain": {"chain_id": str(DOMAIN.chain_id), "contract": DOMAIN.contract}, "messages": kinds}


def build_epochs() -> dict[str, Any]:
    """Work leaves and headers with their hashes."""
    leaves = [{"fields": _to_json(v), "hash": hash_from_bytes(v.compute_hash())} for v in _list_values(WorkLeaf)]
    headers = [
        {"fields": _to_json(v), "hash": v.compute_hash(), "digest": eip712.compute_digest(v, DOMAIN)}
        for v in _list_values(EpochHeader)
    ]
    return {"WorkLeaf": leaves, "EpochHeader": headers}


def build_rewards() -> dict[str, Any]:
    """A tree of five reward leaves: values, leaves, proofs, root."""
    rows = [(BOB, 0), (ALICE, 7), (HIGHEST, 10**30), (LOWEST, 1), (DOMAIN.contract, (1 << 256) - 1)]
    leaves = [
        merkle.compute_leaf(merkle.REWARD_LEAF_TYPES, (DOMAIN.chain_id, DOMAIN.contract, 3, who, earned))
        for who, earned in rows
    ]
    tree = merkle.MerkleTree(leaves)
    found = [
        {
            "contributor": who,
            "cumulative": str(earned),
            "leaf": hash_from_bytes(leaf),
            "proof": tree.get_proof(leaf),
        }
        for (who, earned), leaf in zip(rows, leaves, strict=True)
    ]
    return {"chain": "31337", "ledger": DOMAIN.contract, "pool": "3", "root": tree.root, "rewards": found}


def build_prices() -> dict[str, Any]:
    """Rewards at prices that divide evenly, that are rounded, and at the largest of both numbers."""
    pairs = ((0, 10**18), (1, 10**18), (999_999, 1), (1_000_000, 1), (1499, 2000), (1500, 2000), (2**64 - 1, 2**96 - 1))
    return {"rewards": [{"units": str(u), "price": str(p), "reward": str(compute_reward(u, p))} for u, p in pairs]}


def build_seeds() -> dict[str, Any]:
    """Slots and what is drawn for them."""
    found = []
    for task, (beacon, node) in enumerate((("ab", ALICE), ("00", BOB), ("ff", HIGHEST))):
        slot = {"beacon": Hash("0x" + beacon * 32), "pool": 1, "policy_version": 3, "node": node, "task": task}
        domain = seeding.SlotDomain(**slot)  # type: ignore[arg-type]
        seeds = [[str(seeding.compute_sampling_seed(domain, g, s)) for s in range(2)] for g in range(2)]
        draws = [str(seeding.compute_prompt_draw(domain, g)) for g in range(2)]
        found.append({"slot": {k: str(v) for k, v in slot.items()}, "seeds": seeds, "prompt_draws": draws})
    return {"slots": found, "drawn_rows": _build_drawn_rows()}


def _build_drawn_rows() -> list[dict[str, Any]]:
    found = []
    for receipt, block, count, rows in (("11", "22", 3, 32), ("22", "11", 3, 32), ("00", "ff", 8, 8)):
        hashes = Hash("0x" + receipt * 32), Hash("0x" + block * 32)
        drawn = seeding.draw_rows(*hashes, count=count, rows=rows)
        found.append({"receipt": hashes[0], "block": hashes[1], "count": count, "rows": rows, "drawn": list(drawn)})
    return found


def build_policies() -> dict[str, Any]:
    """Records with the hash that the trainer publishes, and parameters with the keccak256 that a pool keeps."""
    first = _build_record(0, {"embed.weight": 5})
    second = _build_record(
        1, {"embed.weight": 5, "norm.weight": 7}, {"config.json": b"{}"}, parent=first.compute_hash()
    )
    records = [{"text": each.to_bytes().decode(), "hash": each.compute_hash()} for each in (first, second)]
    environment = EnvironmentParams(kind="reasoning_gym", options={"name": "spell_backward"})
    params = PoolParams(name="vectors", environment=environment)
    return {"records": records, "params": [{"text": params.to_text(), "hash": params.compute_hash()}]}


def build_execution_contracts() -> dict[str, Any]:
    """Execution contracts of two cards with their digests."""
    common: dict[str, Any] = {"engine_version": "0.32.0", "torch": "2.13.0+cu130", "sampler": 1}
    hopper = ExecutionContract(
        **common, attention_backend="TRITON_ATTN", attention_version="triton 3.6.0", dtype="bfloat16",
        tensor_parallel_size=1, architecture="NVIDIA H200, sm_90", batch_invariant=True, compilation="eager",
        block_size=0, enable_prefix_caching=True, threads=0,
    )  # fmt: skip
    other = hopper.model_copy(update={"architecture": "NVIDIA B200, sm_100", "tensor_parallel_size": 4})
    return {"contracts": [{"text": each.encode().decode(), "digest": each.digest} for each in (hopper, other)]}


def build_sums() -> dict[str, Any]:
    """Evidence with sums and its hash, and what counts of the sums that validators state of a node."""
    limits = Thresholds(logprob=Pooled(mean=0.01, variance=0.0004, largest=0.05, items=160_000))
    cases = []
    stated_totals = (
        (2, 0.05, (101.5, 99.25, 140.0)),
        (1, 0.2, (140.0, 121.0)),
        (3, 0.05, (1.0, 9.0)),
        (2, 0.05, (104.0, 99.25, 140.0, 103.0, 101.0)),
        (3, 0.05, (140.0, 0.0, 99.25, 101.0)),
    )
    for quorum, allowance, totals in stated_totals:
        stated: dict[str, Sums] = {
            str(i): {"logprob": ItemSum(total=total, items=10_000)} for i, total in enumerate(totals)
        }
        standings = compare(stated, limits, quorum=quorum, allowance=allowance)
        found = [each._asdict() | {"limit": round(each.limit, 9)} for each in standings]
        cases.append({"quorum": quorum, "allowance": allowance, "totals": totals, "items": 10_000, "standings": found})
    return {"thresholds": limits.model_dump(), "cases": cases, "bundle": _build_evidence()}


def _build_evidence() -> dict[str, str]:
    receipt = ReceiptBody(
        pool=PoolId(1), task=TaskId(2), lease=LeaseId(3), node=ALICE, contributor=BOB, policy_version=Step(4),
        work_key=ZERO_HASH, groups=2, units=40, deadline=5,
    )  # fmt: skip
    sums = {name: ItemSum(total=0.1 * i, items=2 if name in PER_WINDOW else 40) for i, name in enumerate(STATISTICS)}
    engine = EngineFacts(name="hf", dtype="bfloat16", batch=32, hardware="cpu", versions={"covey": "0"}, contract="")
    bundle = Bundle(
        chain_id=31337, court=DOMAIN.contract, pool=PoolId(1), params_hash=ZERO_HASH, receipt=receipt,
        signature="0x" + "1b" * 65, record_hash=ZERO_HASH, contract="", draw=ZERO_HASH, rows=(5, 0), full=False,
        decision=Decision.ACCEPT, reason=Reason.NONE, units=40, details={"live_groups": 1},
        sums=sums, engine=engine, isolation="bwrap",
    )  # fmt: skip
    return {"text": bundle.to_bytes().decode(), "hash": bundle.compute_hash()}


def _build_record(
    step: int, sizes: dict[str, int], files: dict[str, bytes] | None = None, *, parent: Hash = ZERO_HASH
) -> PolicyRecord:
    tensors = [
        TensorRow(name=name, dtype="U8", shape=(size,), digest=compute_digest(bytes([size]) * size))
        for name, size in sizes.items()
    ]
    rows = [FileRow(name=name, size=len(data), digest=compute_digest(data)) for name, data in (files or {}).items()]
    return PolicyRecord(pool=3, step=step, parent=parent, tensors=tuple(tensors), files=tuple(rows))


def build_files() -> dict[Path, str]:
    """All that this script writes."""
    parts = {
        "messages": build_messages(),
        "epochs": build_epochs(),
        "rewards": build_rewards(),
        "prices": build_prices(),
        "seeds": build_seeds(),
        "policies": build_policies(),
        "execution_contracts": build_execution_contracts(),
        "sums": build_sums(),
    }
    made = {HERE / f"{name}.json": json.dumps(value, indent=2) + "\n" for name, value in parts.items()}
    return made | {SOLIDITY: _build_solidity(parts["rewards"], parts["policies"], parts["prices"])}


def _build_solidity(rewards: dict[str, Any], policies: dict[str, Any], prices: dict[str, Any]) -> str:
    lines = [
        "// SPDX-License-Identifier: Apache-2.0",
        "// Made by tests/vectors/make.py from covey.protocol; do not edit.",
        "pragma solidity 0.8.30;",
        "",
        'import {EpochHeader, Receipt, Verdict, WorkLeaf} from "../../contracts/interfaces/ICoveyTypes.sol";',
        "",
        "struct NodeRegistration {",
        "    uint256 pool;",
        "    address contributor;",
        "    address node;",
        "    uint256 nonce;",
        "    uint256 deadline;",
        "}",
        "",
        "struct Countersignature {",
        "    bytes32 receiptHash;",
        "    uint64 signedAt;",
        "    uint64 dueBy;",
        "}",
        "",
        "library VectorData {",
        f"    uint256 internal constant CHAIN = {DOMAIN.chain_id};",
        f"    address internal constant CONTRACT = {DOMAIN.contract};",
        f"    uint256 internal constant POOL = {rewards['pool']};",
        f"    bytes32 internal constant ROOT = {rewards['root']};",
        "    uint256 internal constant COUNT = 3;",
        f"    uint256 internal constant REWARDS = {len(rewards['rewards'])};",
        f"    uint256 internal constant PRICES = {len(prices['rewards'])};",
    ]
    for kind in MESSAGES:
        rows = [
            (_to_solidity(m), eip712.compute_struct_hash(m), eip712.compute_digest(m, DOMAIN))
            for m in _list_values(kind)
        ]
        lines += _build_function(kind.__name__, f"{kind.__name__} memory, bytes32, bytes32", rows)
    leaves = [(_to_solidity(v), _to_text(v.compute_hash())) for v in _list_values(WorkLeaf)]
    lines += _build_function("WorkLeaf", "WorkLeaf memory, bytes32", leaves)
    headers = [(_to_solidity(v), v.compute_hash(), eip712.compute_digest(v, DOMAIN)) for v in _list_values(EpochHeader)]
    lines += _build_function("EpochHeader", "EpochHeader memory, bytes32, bytes32", headers)
    for name in ("records", "params"):
        lines += ["", f"    function {name}(uint256 i) internal pure returns (string memory, bytes32) {{"]
        lines += [f"        if (i == {i}) return ('{r['text']}', {r['hash']});" for i, r in enumerate(policies[name])]
        lines += ['        revert("no such vector");', "    }"]
    lines += [
        "",
        "    function price(uint256 i) internal pure returns (uint64, uint96, uint256) {",
    ]
    for i, row in enumerate(prices["rewards"]):
        lines.append(f"        if (i == {i}) return ({row['units']}, {row['price']}, {row['reward']});")
    lines += ['        revert("no such vector");', "    }"]
    lines += ["", "    function reward(uint256 i)", "        internal", "        pure"]
    lines += ["        returns (address who, uint256 earned, bytes32 leaf, bytes32[] memory proof)", "    {"]
    for i, row in enumerate(rewards["rewards"]):
        lines.append(f"        if (i == {i}) {{")
        lines.append(f"            proof = new bytes32[]({len(row['proof'])});")
        lines += [f"            proof[{j}] = {sibling};" for j, sibling in enumerate(row["proof"])]
        lines.append(f"            return ({row['contributor']}, {row['cumulative']}, {row['leaf']}, proof);")
        lines.append("        }")
    return "\n".join([*lines, '        revert("no such vector");', "    }", "}"]) + "\n"


def _build_function(kind: str, returns: str, rows: list[tuple[str, ...]]) -> list[str]:
    name = kind[0].lower() + kind[1:]
    lines = ["", f"    function {name}(uint256 i) internal pure returns ({returns}) {{"]
    for i, row in enumerate(rows):
        lines += [f"        if (i == {i}) {{", "            return (", f"                {kind}("]
        lines += ["                    " + row[0], "                ),"]
        lines += [f"                {part}," for part in row[1:-1]]
        lines += [f"                {row[-1]}", "            );", "        }"]
    return [*lines, '        revert("no such vector");', "    }"]


def _to_solidity(value: Any) -> str:
    return ", ".join(str(int(v)) if isinstance(v, int) else v for v in astuple(value))


def _to_text(value: bytes | str) -> str:
    return hash_from_bytes(value) if isinstance(value, bytes) else value


def main() -> None:
    """Write every file."""
    for path, text in build_files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
