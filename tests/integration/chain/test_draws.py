"""The drawing block is the first block at or after a time, on a real chain with even and uneven block intervals."""

import pytest

from covey.chain.drawing_blocks import find_first_block
from tests.integration.chain.conftest import Chain

pytestmark = pytest.mark.integration


@pytest.fixture
def times(chain: Chain) -> list[int]:
    """Times of all blocks. The last forty are 1 to 9 s apart."""
    head = chain.client.get_block("latest")
    for i in range(40):
        head_time = chain.client.get_block("latest").timestamp
        chain.client.request("evm_setNextBlockTimestamp", hex(head_time + 1 + i * i % 9))
        chain.client.request("evm_mine")
    return [chain.client.get_block(number).timestamp for number in range(head.number + 41)]


def test_find_first_block__every_time__is_what_a_search_from_the_start_finds(chain: Chain, times: list[int]):
    head = chain.client.get_block("latest")
    for time in range(times[-40] - 3, times[-1] + 1):
        expected = next(number for number, each in enumerate(times) if each >= time)
        assert find_first_block(chain.client, time, head=head).number == expected


def test_find_first_block__in_the_future__is_not_there_yet(chain: Chain, times: list[int]):
    assert find_first_block(chain.client, times[-1] + 1, head=chain.client.get_block("latest")) is None


def test_find_first_block__before_the_chain__is_its_first(chain: Chain, times: list[int]):
    assert find_first_block(chain.client, 0, head=chain.client.get_block("latest")).number == 0


def test_find_first_block__later_blocks_than_the_head__are_not_seen(chain: Chain, times: list[int]):
    """`head` is, for example, the newest safe block."""
    old = chain.client.get_block(len(times) - 20)
    assert find_first_block(chain.client, old.timestamp + 1, head=old) is None
