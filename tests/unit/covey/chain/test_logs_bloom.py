import pytest
from eth_utils.crypto import keccak

from covey.chain.logs_bloom import compute_bloom, is_full, may_contain
from covey.chain.node_answers import Log

pytestmark = pytest.mark.unit

WETH = "0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2"
ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
TRANSFER = "0x" + keccak(text="Transfer(address,address,uint256)").hex()
HASH = "0x" + "ab" * 32


def make_log(address: str, *topics: str) -> Log:
    return Log(
        address=address,
        topics=topics,
        data=b"",
        block_number=1,
        block_hash=HASH,
        transaction_hash=HASH,
        log_index=0,
    )


def test_compute_bloom__one_address__sets_the_bits_of_the_yellow_paper():
    """keccak256(address) of WETH begins with d43bd8ac0f7d: the low 11 bits of each of its three words are set."""
    digest = keccak(bytes.fromhex(WETH[2:]))
    bits = [int.from_bytes(digest[i : i + 2]) & 2047 for i in (0, 2, 4)]
    assert compute_bloom([make_log(WETH)]) == sum(1 << bit for bit in set(bits))
    text = f"{compute_bloom([make_log(WETH)]):0512x}"
    assert all(int(text[511 - bit // 4], 16) >> bit % 4 & 1 for bit in bits)


def test_may_contain__filter_of_logs__contains_their_addresses_only():
    bloom = compute_bloom([make_log(WETH, TRANSFER)])
    assert may_contain(bloom, [ALICE, WETH])
    assert not may_contain(bloom, [ALICE])
    assert not may_contain(0, [ALICE, WETH])
    assert may_contain((1 << 2048) - 1, [ALICE])


def test_is_full__half_of_the_bits__is():
    assert is_full((1 << 1024) - 1)
    assert not is_full((1 << 1023) - 1)
