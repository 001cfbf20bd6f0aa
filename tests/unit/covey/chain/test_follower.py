"""The follower on a chain in memory that can be reorganised."""

import pytest
from eth_utils.crypto import keccak
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.chain.deployment import Deployment
from covey.chain.events import PolicyPublished
from covey.chain.follower import KEPT_BLOCKS, NEAR_BLOCKS, ChainProgress, Follower
from covey.chain.node_answers import Block, Log
from covey.errors import TransientError

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
TOPIC = "0x" + keccak(text="PolicyPublished(uint256,uint64,bytes32)").hex()
DEPLOYMENT = Deployment(
    chain_id=1,
    rpc_url="",
    start_block=0,
    pool_registry=ALICE,
    node_registry=ALICE,
    policy_registry=ALICE,
    stake_manager=ALICE,
    epoch_ledger=ALICE,
    slashing_court=ALICE,
    token=ALICE,
)


class MemoryChain:
    """Blocks whose hash follows from a salt. Each contains one event with the salt as its record hash."""

    def __init__(self, length: int) -> None:
        self.salts = [bytes([0, number % 256]) for number in range(length)]
        self.safe_depth = 0
        self.on_logs = lambda: None
        self.ranges: list[tuple[int, int]] = []
        self.limit = 10**9
        """Number of blocks per request for logs that the node accepts."""

    def stick(self) -> "MemoryChain":
        return self

    def hash_of(self, number: int) -> str:
        return "0x" + keccak(b"".join(self.salts[: number + 1])).hex()

    def block_number(self) -> int:
        return len(self.salts) - 1

    def find_block(self, number: int) -> Block | None:
        if not 0 <= number < len(self.salts):
            return None
        parent = self.hash_of(number - 1) if number else ""
        return Block(number=number, hash=self.hash_of(number), parent_hash=parent, timestamp=number, base_fee=0)

    def get_block(self, tag: int | str) -> Block:
        depth = self.safe_depth if tag == "safe" else 0
        block = self.find_block(tag if isinstance(tag, int) else len(self.salts) - 1 - depth)
        assert block is not None
        return block

    def get_logs(self, addresses: list[str], *, first: int, last: int) -> list[Log]:
        assert addresses == [ALICE] * 6
        if last - first >= self.limit:
            raise TransientError("chain_refused", "eth_getLogs: too wide")
        self.on_logs()
        self.ranges.append((first, last))
        return self.list_logs(first, last)

    def get_block_logs(self, addresses: list[str], block: Block) -> list[Log]:
        """Return the logs of a block. Raises TransientError for a block that a reorganisation has removed."""
        assert addresses == [ALICE] * 6
        self.on_logs()
        for number in range(len(self.salts)):
            if self.hash_of(number) == block.hash:
                return self.list_logs(number, number)
        raise TransientError("chain_refused", "eth_getLogs: unknown block")

    def list_logs(self, first: int, last: int) -> list[Log]:
        return [
            Log(
                address=ALICE,
                topics=(TOPIC, f"0x{1:064x}", f"0x{number:064x}"),
                data=self.salts[number].ljust(32, b"\0"),
                block_number=number,
                block_hash=self.hash_of(number),
                transaction_hash=f"0x{number:064x}",
                log_index=0,
            )
            for number in range(first, last + 1)
        ]

    def reorganise(self, depth: int, length: int, salt: int) -> None:
        kept = max(0, len(self.salts) - depth)
        self.salts = self.salts[:kept] + [bytes([salt, i % 256]) for i in range(length)]


class Ledger:
    """Rows that a caller derives from events, applied in the order that `ChainProgress` requires."""

    def __init__(self) -> None:
        self.cursor = ()
        self.rows: dict[int, str] = {}

    def apply(self, progress: ChainProgress) -> None:
        if progress.rolled_back_to is not None:
            self.rows = {number: row for number, row in self.rows.items() if number <= progress.rolled_back_to}
        for event in progress.events:
            assert isinstance(event, PolicyPublished)
            assert event.step not in self.rows, "an event was applied twice"
            self.rows[event.step] = event.record_hash
        self.cursor = progress.cursor


def make_follower(chain: MemoryChain, **options) -> Follower:
    return Follower(chain, DEPLOYMENT, **options)


def catch_up(follower: Follower, ledger: Ledger) -> None:
    for _ in range(len(follower._client.salts) + 2):
        progress = follower.poll(ledger.cursor)
        ledger.apply(progress)
        if progress.is_caught_up:
            return
    raise AssertionError("never caught up")


def rows_of(chain: MemoryChain) -> dict[int, str]:
    return {number: "0x" + salt.ljust(32, b"\0").hex() for number, salt in enumerate(chain.salts)}


def test_poll__from_nothing__reads_in_bounded_ranges():
    follower = make_follower(MemoryChain(25), max_range=10)
    first = follower.poll(())
    assert [event.block_number for event in first.events] == list(range(10))
    assert (first.rolled_back_to, first.is_caught_up) == (None, False)
    second = follower.poll(first.cursor)
    third = follower.poll(second.cursor)
    assert [event.block_number for event in third.events] == list(range(20, 25))
    assert third.is_caught_up
    assert [seen.number for seen in third.cursor] == [9, 19, 24]


def test_poll__nothing_new__gives_nothing_and_the_same_cursor():
    follower = make_follower(MemoryChain(5))
    cursor = follower.poll(()).cursor
    assert follower.poll(cursor) == ChainProgress(
        rolled_back_to=None, events=(), cursor=cursor, read_until=0, is_caught_up=True
    )


def test_poll__same_cursor_twice__gives_the_same():
    follower = make_follower(MemoryChain(5))
    assert follower.poll(()) == follower.poll(())


def test_poll__reorganised__rolls_back_to_the_newest_common_block():
    chain = MemoryChain(0)
    ledger = Ledger()
    for number in range(10):
        chain.salts.append(bytes([0, number]))
        catch_up(make_follower(chain), ledger)
    chain.reorganise(depth=3, length=4, salt=1)
    progress = make_follower(chain).poll(ledger.cursor)
    assert progress.rolled_back_to == 6
    assert [event.block_number for event in progress.events] == [7, 8, 9, 10]
    ledger.apply(progress)
    assert ledger.rows == rows_of(chain)


def test_poll__shorter_fork__also_rolls_back():
    chain = MemoryChain(0)
    ledger = Ledger()
    for number in range(10):
        chain.salts.append(bytes([0, number]))
        catch_up(make_follower(chain), ledger)
    chain.reorganise(depth=5, length=2, salt=1)
    catch_up(make_follower(chain), ledger)
    assert ledger.rows == rows_of(chain)


def test_poll__node_lags__waits_without_rolling_back():
    chain = MemoryChain(10)
    cursor = make_follower(chain).poll(()).cursor
    chain.salts = chain.salts[:6]
    assert make_follower(chain).poll(cursor) == ChainProgress(
        rolled_back_to=None, events=(), cursor=cursor, read_until=0, is_caught_up=True
    )


def test_poll__fork_below_the_cursor__starts_over():
    chain = MemoryChain(10)
    ledger = Ledger()
    catch_up(make_follower(chain), ledger)
    chain.reorganise(depth=10, length=12, salt=1)
    progress = make_follower(chain).poll(ledger.cursor)
    assert progress.rolled_back_to == -1
    ledger.apply(progress)
    assert ledger.rows == rows_of(chain)


def test_poll__reorganised_while_reading__is_transient():
    chain = MemoryChain(10)
    chain.on_logs = lambda: chain.reorganise(depth=2, length=2, salt=1)
    with pytest.raises(TransientError) as caught:
        make_follower(chain).poll(())
    assert caught.value.code in ("chain_moved", "chain_refused")


def test_poll__newest_blocks__are_read_by_hash_and_older_ones_by_number():
    chain = MemoryChain(100)
    progress = make_follower(chain).poll(())
    assert [event.block_number for event in progress.events] == list(range(100))
    assert chain.ranges == [(0, 99 - NEAR_BLOCKS)]
    chain.reorganise(0, 3, 1)
    assert [event.block_number for event in make_follower(chain).poll(progress.cursor).events] == [100, 101, 102]
    assert len(chain.ranges) == 1


@pytest.mark.parametrize("limit", [1, 5, 10, 64, 500])
def test_poll__node_accepts_few_blocks__reads_on_from_where_it_stopped(limit: int):
    chain, ledger = MemoryChain(100), Ledger()
    chain.limit = limit
    follower = make_follower(chain)
    catch_up(follower, ledger)
    assert ledger.rows == rows_of(chain)
    numbers = [number for first, last in chain.ranges for number in range(first, last + 1)]
    assert numbers == list(range(100 - NEAR_BLOCKS))


def test_poll__reorganised_while_a_shorter_range_is_read__is_transient():
    chain = MemoryChain(100)
    chain.limit = 10
    chain.on_logs = lambda: chain.reorganise(depth=99, length=99, salt=1)
    with pytest.raises(TransientError, match="chain_moved"):
        make_follower(chain).poll(())


def test_poll__finality_safe__stops_at_the_safe_block():
    chain = MemoryChain(10)
    chain.safe_depth = 4
    progress = make_follower(chain, finality="safe").poll(())
    assert progress.cursor[-1].number == 5
    assert len(progress.events) == 6


def test_poll__long_run__keeps_a_bounded_cursor():
    chain = MemoryChain(1)
    ledger = Ledger()
    follower = make_follower(chain)
    for number in range(1, KEPT_BLOCKS + 20):
        chain.salts.append(bytes([0, number % 256]))
        catch_up(follower, ledger)
    assert len(ledger.cursor) == KEPT_BLOCKS
    assert ledger.rows == rows_of(chain)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 12)),
        st.tuples(st.just("fork"), st.tuples(st.integers(1, 64), st.integers(0, 70))),
        st.tuples(st.just("poll"), st.integers(1, 3)),
        st.tuples(st.just("limit"), st.integers(1, 20)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(1, 15))
def test_poll__any_forks_and_pauses__ends_in_the_same_state_as_a_replay(script, max_range):
    chain = MemoryChain(1)
    ledger = Ledger()
    follower = make_follower(chain, max_range=max_range)
    for salt, (verb, value) in enumerate(script, start=1):
        if verb == "grow":
            chain.reorganise(0, value, salt)
        elif verb == "fork":
            chain.reorganise(*value, salt)
            chain.salts = chain.salts or [bytes([salt, 255])]
        elif verb == "limit":
            chain.limit = value
        else:
            for _ in range(value):
                ledger.apply(follower.poll(ledger.cursor))
    # The follower waits for a node whose chain is shorter than before, so the chain is made longer here.
    chain.reorganise(0, 80, 200)
    catch_up(follower, ledger)
    assert ledger.rows == rows_of(chain)
