"""The events of a pool: which blocks a look asks for, and what a restart, a reorganisation or a bad file changes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.chain.events import FalseAcceptSlashed, SignerSlashed, get_topic
from covey.chain.finality import KEPT_BLOCKS
from covey.chain.node_answers import Block, Log
from covey.errors import TransientError
from covey.network.pool_history import PoolHistory
from tests.fakes.account import ALICE
from tests.unit.covey.chain.test_follower import DEPLOYMENT

pytestmark = pytest.mark.unit
POOL, START = 7, 3
QUERIES = 4
"""Requests for logs of a range."""


def word(number: int) -> str:
    return f"0x{number:064x}"


class CountingNode:
    """A chain in which validators of pool 7 are slashed, and which counts what it is asked for."""

    def __init__(self, length: int) -> None:
        self.length, self.fork = length, 0
        self.slashed: dict[int, int] = {}
        """Number of the case by the block that slashes for it."""
        self.asked: list[tuple[int, int]] = []
        self.requests = 0

    def stick(self) -> "CountingNode":
        return self

    def get_block(self, tag: int | str) -> Block:
        self.requests += 1
        number = self.length - 1 if tag == "latest" else int(tag)
        if number >= self.length:
            raise TransientError("no_block", "not yet")
        salt = self.fork if number >= self.length - 5 or self.fork > 9 else 0
        return Block(number=number, hash=word(number + 1000_000 * salt), parent_hash=word(0), timestamp=0, base_fee=0)

    def block_number(self) -> int:
        self.requests += 1
        return self.length - 1

    def get_logs(self, addresses: list[str], *, first: int, last: int, topics: object) -> list[Log]:
        self.requests += 1
        self.asked.append((first, last))
        if addresses != [DEPLOYMENT.slashing_court] or topics != (None, None, word(POOL)):
            return []
        return [
            Log(
                address=DEPLOYMENT.slashing_court,
                topics=(get_topic(SignerSlashed), word(case), word(POOL), "0x" + "00" * 12 + ALICE[2:].lower()),
                data=bytes.fromhex(word(5)[2:]),
                block_number=number,
                block_hash=word(number),
                transaction_hash=word(case),
                log_index=0,
            )
            for number, case in sorted(self.slashed.items())
            if first <= number <= last
        ]


def open_history(node: CountingNode, folder: Path, **changes: object) -> PoolHistory:
    deployment = replace(DEPLOYMENT, start_block=START, **changes)
    contracts = SimpleNamespace(deployment=deployment)
    return PoolHistory(client=node, contracts=contracts, pool=POOL, file=folder / "watch" / "events.json")


def list_cases(history: PoolHistory) -> list[int]:
    return [case for case in range(1, 9) if history.list_case_events(word(case))]


def count(node: CountingNode, history: PoolHistory) -> tuple[int, set[tuple[int, int]]]:
    """Refresh, and return the number of requests and the ranges of blocks that were asked for."""
    node.requests, node.asked = 0, []
    history.refresh()
    return node.requests, set(node.asked)


def test_refresh__idle_chain__takes_one_request_and_a_new_block_reads_only_what_can_change(tmp_path: Path):
    node = CountingNode(1000)
    node.slashed = {40: 1, 995: 2}
    history = open_history(node, tmp_path)
    assert count(node, history)[1] == {(START, 999)}
    assert list_cases(history) == [1, 2]
    (event,) = history.list_case_events(word(1))
    assert (type(event), event.validator, event.amount) == (SignerSlashed, ALICE, 5)
    assert history._find(FalseAcceptSlashed, DEPLOYMENT.slashing_court, word(1)) is None
    for _ in range(5):
        assert count(node, history) == (1, set())
    node.length, node.slashed[1000] = 1001, 3
    assert count(node, history) == (QUERIES + 3, {(1000 - KEPT_BLOCKS, 1000)})
    assert list_cases(history) == [1, 2, 3]


def test_refresh__process_is_restarted__goes_on_with_the_file(tmp_path: Path):
    node = CountingNode(1000)
    node.slashed = {40: 1, 995: 2}
    open_history(node, tmp_path).refresh()
    again = open_history(node, tmp_path)
    assert count(node, again)[1] == {(1000 - KEPT_BLOCKS, 999)}
    assert list_cases(again) == [1, 2]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"until": 5, "until_hash": "0x", "logs": [{}]}', b"\xff"])
def test_refresh__damaged_file__reads_the_chain_again(tmp_path: Path, content: bytes):
    node = CountingNode(1000)
    node.slashed = {40: 1}
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "events.json").write_bytes(content)
    history = open_history(node, tmp_path)
    assert count(node, history)[1] == {(START, 999)}
    assert list_cases(history) == [1]


def test_refresh__file_of_another_chain__is_ignored(tmp_path: Path):
    node = CountingNode(1000)
    open_history(node, tmp_path).refresh()
    assert count(node, open_history(node, tmp_path, chain_id=5))[1] == {(START, 999)}


def test_refresh__reorganisation__replaces_the_newest_blocks(tmp_path: Path):
    node = CountingNode(1000)
    node.slashed = {40: 1, 998: 2}
    history = open_history(node, tmp_path)
    history.refresh()
    node.fork, node.slashed = 1, {40: 1, 997: 3}
    history.refresh()
    assert list_cases(history) == [1, 3]
    node.fork, node.slashed = 10, {50: 4}  # deeper than is ever expected
    assert count(node, history)[1] == {(START, 999)}
    assert list_cases(history) == [4]


def test_refresh__node_lags_behind_the_file__waits(tmp_path: Path):
    node = CountingNode(1000)
    open_history(node, tmp_path).refresh()
    node.length = 500
    with pytest.raises(TransientError, match="no_block"):
        open_history(node, tmp_path).refresh()


def test_refresh__long_chain__keeps_each_range(tmp_path: Path):
    node = CountingNode(250_000)
    node.slashed = {9: 1, 150_000: 2, 249_999: 3}
    history = open_history(node, tmp_path)
    assert count(node, history)[1] == {(3, 100_002), (100_003, 200_002), (200_003, 249_999)}
    assert list_cases(history) == [1, 2, 3]
