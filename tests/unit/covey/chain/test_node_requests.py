"""Requests to several nodes: which one answers, what a second one confirms, and what all are sent."""

from collections.abc import Callable
from typing import Any

import pytest
from eth_utils.crypto import keccak

from covey.chain.json_rpc import ChainClient
from covey.chain.logs_bloom import compute_bloom, may_contain
from covey.chain.node_answers import Block, read_logs
from covey.chain.node_pool import Node
from covey.errors import OperatorError, ProtocolError, TransientError

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
BOB = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
WORD = "0x" + "ab" * 32
LOG = {"address": ALICE, "topics": [WORD], "data": "0x", "blockNumber": "0x2", "blockHash": WORD} | {
    "transactionHash": WORD, "logIndex": "0x0",
}  # fmt: skip
AWAY = TransientError("chain_unreachable", "away")
Answer = Callable[..., Any]


class Nodes(ChainClient):
    """A client of the nodes a, b and so on, which answer as functions of a method and its parameters do."""

    def __init__(self, *answers: Answer) -> None:
        names = "abc"[: len(answers)]
        super().__init__(",".join(f"http://{name}" for name in names))
        self.answers = dict(zip(names, answers, strict=True))
        self.asked: list[tuple[str, str]] = []

    def ask_node(self, node: Node, method: str, *params: Any) -> Any:
        self.asked.append((node.url[-1], method))
        answer = self.answers[node.url[-1]](method, *params)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def count(self, method: str) -> str:
        return "".join(name for name, asked in self.asked if asked == method)


def say(**answers: Any) -> Answer:
    """Return an answer by method, without the prefix "eth_"."""
    return lambda method, *_: answers.get(method.removeprefix("eth_"), "0x9")


@pytest.mark.parametrize(
    "fault",
    [AWAY, TransientError("bad_answer", "?"), TransientError("chain_refused", "HTTP 429, too many requests"), "odd"],
)
def test_read__node_at_fault__next_one_answers_and_is_asked_from_then_on(fault: Any):
    client = Nodes(say(chainId=fault), say(chainId="0x5"))
    assert [client.chain_id(), client.chain_id()] == [5, 5]
    assert client.count("eth_chainId") == "abb"


def test_read__refusal_or_revert__is_the_answer():
    for error in (TransientError("chain_refused", "no such method"), ProtocolError("reverted", "no")):
        client = Nodes(say(call=error), say(call="0x"))
        with pytest.raises(type(error)):
            client.call(ALICE, b"")
        assert client.count("eth_call") == "a"


def test_read__all_are_away__raises_the_first_fault():
    client = Nodes(say(chainId=AWAY), say(chainId=TransientError("bad_answer", "?")))
    with pytest.raises(TransientError, match="chain_unreachable"):
        client.chain_id()


def test_stick__node_fails_meanwhile__raises_and_the_next_one_is_chosen_later():
    client = Nodes(say(blockNumber="0x5"), say(blockNumber="0x6"))
    one = client.stick()
    assert one.stick() is one
    assert one.rpc_url == "http://a"
    client.answers["a"] = say(blockNumber=AWAY)
    with pytest.raises(TransientError):
        one.block_number()
    assert client.stick().block_number() == 6


def test_stick__node_lags__is_not_chosen():
    client = Nodes(say(blockNumber="0x10"), say(blockNumber=AWAY), say(blockNumber="0x40"))
    assert client.stick().rpc_url == "http://c"


def test_get_logs__empty_answer_of_a_node_without_its_index__second_node_has_the_event():
    client = Nodes(say(getLogs=[]), say(getLogs=[LOG], blockNumber="0x2"))
    assert [log.block_number for log in client.get_logs([ALICE], first=1, last=2)] == [2]
    assert client.chain_id() == 9
    assert client.count("eth_chainId") == "b", "the first one rests after its wrong answer"


def test_get_logs__two_nodes_say_there_are_none__is_empty():
    client = Nodes(say(getLogs=[]), say(getLogs=[], blockNumber="0x2"))
    assert client.get_logs([ALICE], first=1, last=2) == []
    assert client.count("eth_getLogs") == "ab"


@pytest.mark.parametrize("second", [say(blockNumber=AWAY), say(blockNumber="0x1")])
def test_get_logs__second_node_is_away_or_behind__third_one_is_asked(second: Answer):
    client = Nodes(say(getLogs=[]), second, say(getLogs=[LOG], blockNumber="0x2"))
    assert len(client.get_logs([ALICE], first=1, last=2)) == 1
    assert client.count("eth_getLogs") == "ac"


def test_get_logs__no_other_node_answers__word_of_one_counts():
    client = Nodes(say(getLogs=[]), say(blockNumber=AWAY))
    assert client.get_logs([ALICE], first=1, last=2) == []


def make_header(*logs: dict[str, Any]) -> Block:
    bloom = compute_bloom(read_logs(list(logs)) or [])
    return Block(number=2, hash=WORD, parent_hash=WORD, timestamp=1, base_fee=0, logs_bloom=bloom)


def test_get_block_logs__empty_although_the_header_shows_an_event__is_transient_and_not_lost():
    client = Nodes(say(getLogs=[]))
    with pytest.raises(TransientError, match="bad_answer: the chain node did not return all logs of block 2"):
        client.get_block_logs([ALICE], make_header(LOG))
    client.answers["a"] = say(getLogs=[LOG])
    assert len(client.get_block_logs([ALICE], make_header(LOG))) == 1


def test_get_block_logs__header_excludes_the_address__empty_answer_is_believed_at_once():
    client = Nodes(say(getLogs=[]))
    assert client.get_block_logs([BOB], make_header(LOG)) == []
    assert client.count("eth_getLogs") == "a"


def test_get_block_logs__filter_is_wrong_about_the_address__all_logs_of_the_block_prove_it():
    others = [LOG | {"address": f"0x{i:040x}", "logIndex": hex(i)} for i in range(150)]
    header = make_header(*others)
    addresses = ("0x" + keccak(number.to_bytes(4))[12:].hex() for number in range(10**6))
    address = next(each for each in addresses if may_contain(header.logs_bloom, [each]))
    client = Nodes(lambda method, query: [] if query.get("address") else others)
    assert client.get_block_logs([address], header) == []
    assert client.count("eth_getLogs") == "aa"


def test_get_block_logs__full_filter__second_node_is_asked():
    header = Block(number=2, hash=WORD, parent_hash=WORD, timestamp=1, base_fee=0, logs_bloom=(1 << 2048) - 1)
    client = Nodes(say(getLogs=[]), say(getLogs=[LOG]))
    assert len(client.get_block_logs([ALICE], header)) == 1
    assert Nodes(say(getLogs=[])).get_block_logs([ALICE], header) == []


def test_send_raw__several_nodes__all_are_sent_the_transaction():
    client = Nodes(say(sendRawTransaction=AWAY), say(), say(sendRawTransaction=ProtocolError("already_known", "")))
    client.send_raw(b"\x02")
    assert client.count("eth_sendRawTransaction") == "abc"


def test_send_raw__none_accepts__raises_the_first_refusal():
    client = Nodes(say(sendRawTransaction=AWAY), say(sendRawTransaction=ProtocolError("nonce_too_low", "")))
    with pytest.raises(ProtocolError, match="nonce_too_low"):
        client.send_raw(b"\x02")


def require_chain_5(client: ChainClient) -> None:
    if client.chain_id() != 5:
        raise OperatorError("wrong_chain", "another chain", fix="Correct it")


def test_require_each__one_is_of_another_chain__is_refused():
    with pytest.raises(OperatorError, match="wrong_chain"):
        Nodes(say(chainId="0x5"), say(chainId="0x6")).require_each(require_chain_5)


def test_require_each__node_is_away_at_first__is_checked_before_its_first_answer():
    client = Nodes(say(chainId="0x5"), say(chainId=AWAY), say(chainId=AWAY))
    client.require_each(require_chain_5)
    client.answers = {"a": say(getBalance=AWAY), "b": say(chainId="0x6"), "c": say(chainId="0x5", getBalance="0x7")}
    assert client.get_balance(ALICE) == 7
    assert client.count("eth_getBalance") == "ac"


def test_require_each__none_answers__raises_the_fault():
    with pytest.raises(TransientError, match="away"):
        Nodes(say(chainId=AWAY), say(chainId=AWAY)).require_each(require_chain_5)
