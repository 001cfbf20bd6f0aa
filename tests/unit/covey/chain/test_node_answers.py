"""Values of nodes' answers, in the forms that nodes give them."""

from typing import Any

import pytest

from covey.chain.node_answers import read_block, read_bytes, read_int, read_logs, read_median_fee, read_mined
from covey.protocol.ids import Hash

pytestmark = pytest.mark.unit
WORD = Hash("0x" + "ab" * 32)
FAULTS = (TypeError, ValueError, LookupError, AttributeError)


@pytest.mark.parametrize(
    ("value", "number"),
    [("0x0", 0), ("0x", 0), ("0x2A", 42), ("0x002a", 42), (42, 42), ("42", 42), (2**256 - 1, 2**256 - 1)],
)
def test_read_int__forms_of_nodes__are_read(value: Any, number: int):
    assert read_int(value) == number


@pytest.mark.parametrize(
    "value",
    [None, True, -1, "-1", 1.5, "1.5", "2a", " 1", "1_0", "0x 1", "", [], {}, "9" * 78, "9" * 79, 2**256, hex(2**256)],
)
def test_read_int__anything_else__is_refused(value: Any):
    with pytest.raises(FAULTS):
        read_int(value)


@pytest.mark.parametrize(
    ("rewards", "fee"), [([["0x5"]], 5), ([["0x1"], ["0x9"]], 1), ([["0x3"], ["0x1"], [2], ["0x0"], ["0x9"]], 2)]
)
def test_read_median_fee__blocks__is_the_lower_middle(rewards: list[list[Any]], fee: int):
    assert read_median_fee({"reward": rewards}) == fee


def test_read_block__hash_in_upper_case__is_lowered():
    block = read_block({"number": 1, "hash": "0x" + "AB" * 32, "parentHash": WORD, "timestamp": "0x2"})
    assert block is not None
    assert (block.number, block.hash, block.timestamp, block.base_fee) == (1, WORD, 2, 0)


@pytest.mark.parametrize(
    "damage",
    [
        {"number": "0x8"},
        {"number": 2**63},
        {"timestamp": hex(2**63)},
        {"timestamp": "9" * 30},
        {"baseFeePerGas": hex(2**60)},
    ],
)
def test_read_block__another_block_or_a_number_that_no_database_holds__is_refused(damage: dict[str, Any]):
    block = {"number": "0x7", "hash": WORD, "parentHash": WORD, "timestamp": hex(2**63 - 1)}
    assert read_block(block, number=7) == read_block(block)
    with pytest.raises(ValueError, match=r"the number 8|at most \d\d bits"):
        read_block(block | damage, number=7)


@pytest.mark.parametrize("name", ["blockNumber", "gasUsed"])
def test_read_mined__number_that_no_database_holds__is_refused(name: str):
    receipt = {"blockNumber": 3, "blockHash": WORD, "status": "0x1", "gasUsed": 5}
    with pytest.raises(ValueError, match="at most 63 bits"):
        read_mined(WORD, receipt | {name: hex(2**63)})


@pytest.mark.parametrize("contract", [None, ""])
def test_read_mined__no_contract__is_none(contract: Any):
    receipt = {"blockNumber": 3, "blockHash": WORD, "status": "0x1", "gasUsed": 5, "contractAddress": contract}
    mined = read_mined(WORD, receipt)
    assert mined is not None
    assert (mined.block_number, mined.is_success, mined.gas_used, mined.contract) == (3, True, 5, None)


@pytest.mark.parametrize("logs", [{}, "0x", [[]], [None], [{"address": "0x12"}]])
def test_read_logs__damaged__is_refused(logs: Any):
    with pytest.raises(FAULTS):
        read_logs(logs)


def test_read_logs__null__is_told_from_an_empty_list():
    assert read_logs(None) is None
    assert read_logs([]) == []


@pytest.mark.parametrize("text", [None, 5, "0xabc", "0xzz"])
def test_read_bytes__damaged__is_refused(text: Any):
    with pytest.raises(FAULTS):
        read_bytes(text)
