import pytest

from covey.chain.node_pool import HEADS_EVERY, Node, NodePool, split_urls
from covey.errors import TransientError

pytestmark = pytest.mark.unit

FAULT = TransientError("chain_unreachable", "away")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def make_pool(names: str) -> tuple[NodePool, Clock]:
    clock = Clock()
    nodes = [Node(f"http://{name}", timeout_s=1.0, max_bytes=1) for name in names]
    return NodePool(nodes, clock=clock), clock


def rank(pool: NodePool) -> str:
    return "".join(node.url[-1] for node in pool.rank())


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a", ["http://a"]),
        ("https://a/k,y,https://b", ["https://a/k,y", "https://b"]),
        (" https://a, https://b\nhttps://a,", ["https://a", "https://b"]),
    ],
)
def test_split_urls__commas_and_spaces__separate_addresses_only(text: str, urls: list[str]):
    assert split_urls(text) == urls


def test_rank__node_at_fault__rests_and_the_next_one_stays_current():
    pool, clock = make_pool("abc")
    assert rank(pool) == "abc"
    pool.record_fault(pool.nodes[0], FAULT)
    assert rank(pool) == "bca"
    pool.record_answer(pool.nodes[1])
    clock.now += 1.5
    assert rank(pool) == "bca", "a is back, but it has had a fault, and b answers"
    pool.record_answer(pool.nodes[0])
    assert rank(pool) == "bac", "requests stay with b as long as it answers"


def test_record_fault__again_and_again__rests_twice_as_long_up_to_a_minute():
    pool, clock = make_pool("ab")
    a = pool.nodes[0]
    rests = []
    for _ in range(8):
        pool.record_fault(a, FAULT)
        rests.append(a.rests_until - clock.now)
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]
    pool.record_answer(a)
    pool.record_fault(a, FAULT)
    assert a.rests_until - clock.now == 1


def test_exclude__node_of_another_chain__is_last_for_ever():
    pool, clock = make_pool("ab")
    pool.exclude(pool.nodes[0])
    clock.now += 1e9
    assert rank(pool) == "ba"


@pytest.mark.parametrize(
    ("heads", "order"),
    [
        ({"a": 83, "b": 100}, "ba"),
        ({"a": 84, "b": 100}, "ab"),
        ({"a": 100, "b": 100, "c": 10**9}, "abc"),
        ({"a": 83, "b": 100, "c": 100}, "bca"),
        ({"a": 5}, "a"),
    ],
)
def test_record_heads__more_than_16_blocks_behind__rests(heads: dict[str, int], order: str):
    pool, _ = make_pool("".join(heads))
    pool.record_heads(dict(zip(pool.nodes, heads.values(), strict=True)))
    assert rank(pool) == order


def test_must_compare_heads__several_nodes__once_in_half_a_minute():
    pool, clock = make_pool("ab")
    assert [pool.must_compare_heads(), pool.must_compare_heads()] == [True, False]
    clock.now += HEADS_EVERY
    assert pool.must_compare_heads()
    assert not make_pool("a")[0].must_compare_heads()
