import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from eth_utils.crypto import keccak

from covey.chain.deployment import CONTRACTS, Deployment
from covey.chain.json_rpc import Call, ChainClient, open_node
from covey.chain.node_answers import Block
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError
from tests.fakes.contracts import encode_domain

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
WORD = "0x" + "ab" * 32
HEADER = Block(number=1, hash=WORD, parent_hash=WORD, timestamp=1, base_fee=0)


class Node:
    """An HTTP server that gives scripted answers and records the requests."""

    def __init__(self) -> None:
        node = self
        self.answers: list[bytes] = []
        self.status, self.headers = 200, dict[str, str]()
        self.asked: list[dict] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                node.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                body = node.answers.pop(0)
                self.send_response(node.status)
                self.send_header("Content-Length", str(len(body)))
                for name, value in node.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def result(self, value: object) -> None:
        self.answers.append(json.dumps({"jsonrpc": "2.0", "id": 1, "result": value}).encode())

    def error(self, **error: object) -> None:
        self.answers.append(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode())


@pytest.fixture(scope="module")
def server() -> Iterator[Node]:
    node = Node()
    thread = threading.Thread(target=node.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield node
    node.server.shutdown()
    node.server.server_close()
    thread.join()


@pytest.fixture
def node(server: Node) -> Node:
    server.answers.clear()
    server.status, server.headers = 200, {}
    server.asked.clear()
    return server


def make_deployment(chain_id: int, rpc_url: str) -> Deployment:
    addresses = dict.fromkeys([*CONTRACTS.values(), "token"], ALICE)
    return Deployment(chain_id=chain_id, rpc_url=rpc_url, start_block=0, **addresses)


@pytest.fixture
def client(node: Node) -> ChainClient:
    return ChainClient(node.url, timeout_s=60.0)


def test_open_node__deployment_of_this_version__returns_the_named_node(node):
    node.result("0x5")
    node.result("0x" + encode_domain().hex())
    assert open_node(make_deployment(5, "http://127.0.0.1:1"), node.url).rpc_url == node.url
    selector = keccak(text="eip712Domain()")[:4].hex()
    assert node.asked[1]["params"][0] == {"to": ALICE, "data": f"0x{selector}"}


def test_open_node__deployment_of_version_1__is_refused(node):
    node.result("0x5")
    node.result("0x" + encode_domain("1").hex())
    with pytest.raises(
        OperatorError, match="the contracts have version '1', but this release supports version '3'"
    ) as caught:
        open_node(make_deployment(5, node.url))
    assert caught.value.code == "old_deployment"


def test_open_node__no_contract_yet__is_transient(node):
    """The node lags, or the deployment's transactions are not in a block yet."""
    node.result("0x5")
    node.result("0x")
    with pytest.raises(TransientError, match=f"no_contract: there is no contract EpochLedger at {ALICE}"):
        open_node(make_deployment(5, node.url))


def test_open_node__another_chain__is_refused_and_names_no_secret(node):
    node.result("0x1")
    with pytest.raises(OperatorError, match=f"{node.url} is on chain 1, but the contracts are on chain 5") as caught:
        open_node(make_deployment(5, node.url + "/?key=secret"))
    assert caught.value.code == "wrong_chain"
    assert "secret" not in str(caught.value)


BLOCK = {"number": "0x7", "hash": WORD, "parentHash": WORD, "timestamp": "0x5", "baseFeePerGas": "0x7"}


def make_unique(node: Node, start_hash: str) -> Deployment:
    return replace(make_deployment(5, node.url), start_block=7, start_hash=start_hash)


def test_open_node__block_of_the_deployment_is_there__returns_the_node(node):
    node.result("0x5")
    node.result(BLOCK)
    node.result("0x" + encode_domain().hex())
    assert open_node(make_unique(node, WORD)).rpc_url == node.url
    assert node.asked[1]["params"] == ["0x7", False]


def test_open_node__another_devnet_on_the_same_port__is_refused(node):
    other = "0x" + "cd" * 32
    node.result("0x5")
    node.result(BLOCK)
    with pytest.raises(OperatorError, match=f"another chain with the id 5: its block 7 has the hash {WORD}") as caught:
        open_node(make_unique(node, other))
    assert caught.value.code == "wrong_chain"
    assert other in caught.value.message


def test_open_node__node_is_behind_the_deployment__is_transient(node):
    for answer in ("0x5", None, "0x6"):
        node.result(answer)
    with pytest.raises(TransientError, match="no_block: the chain node does not have block 7 yet"):
        open_node(make_unique(node, WORD))


def test_open_node__node_has_pruned_the_block__goes_on(node):
    for answer in ("0x5", None, "0x9", "0x" + encode_domain().hex()):
        node.result(answer)
    assert open_node(make_unique(node, WORD)).rpc_url == node.url


def test_get_block__answer__becomes_typed(node, client):
    node.result(
        {"number": "0x10", "hash": WORD, "parentHash": WORD, "timestamp": "0x5", "baseFeePerGas": "0x7", "extra": 1}
    )
    block = client.get_block(16)
    assert (block.number, block.hash, block.timestamp, block.base_fee) == (16, WORD, 5, 7)
    assert node.asked[0]["method"] == "eth_getBlockByNumber"
    assert node.asked[0]["params"] == ["0x10", False]


def test_get_block__unknown__is_transient(node, client):
    node.result(None)
    with pytest.raises(TransientError) as caught:
        client.get_block("safe")
    assert caught.value.code == "no_block"


def test_request__no_server__is_transient():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        client = ChainClient(f"http://127.0.0.1:{closed.getsockname()[1]}", timeout_s=1.0)
        with pytest.raises(TransientError) as caught:
            client.block_number()
    assert caught.value.code == "chain_unreachable"
    assert f"{client.rpc_url} did not respond to eth_blockNumber: " in caught.value.message
    assert "correct rpc_url" in caught.value.message


def test_request__url_with_a_password__is_shown_without_it():
    with pytest.raises(TransientError, match=r"http://127.0.0.1:1 did not respond to") as caught:
        ChainClient("http://me:secret@127.0.0.1:1/rpc?key=secret", timeout_s=0.5).block_number()
    assert "secret" not in str(caught.value)


def test_request__no_answer__is_transient_after_the_timeout():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        client = ChainClient(f"http://127.0.0.1:{mute.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(TransientError) as caught:
            client.block_number()
    assert caught.value.code == "chain_unreachable"


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff\xfe"])
def test_request__answer_is_not_json__is_transient(node, client, body):
    node.answers.append(body)
    with pytest.raises(TransientError) as caught:
        client.block_number()
    assert caught.value.code == "chain_unreachable"


@pytest.mark.parametrize(
    "body",
    [
        [],
        [{"jsonrpc": "2.0", "id": 1, "result": "0x1"}],
        5,
        "text",
        None,
        {},
        {"message": "no"},
        *({"jsonrpc": "2.0", "id": 1, "result": each} for each in (None, "", "x", -1, True, [], {}, "0x1g", "1e3")),
        {"jsonrpc": "2.0", "id": 1},
    ],
)
def test_chain_id__unusual_answer__is_transient(node, client, body):
    node.answers.append(json.dumps(body).encode())
    with pytest.raises(TransientError) as caught:
        client.chain_id()
    assert caught.value.code == "bad_answer"


@pytest.mark.parametrize(
    "answer",
    [
        {"jsonrpc": "2.0", "id": 1, "result": "0x2a", "error": None},
        {"jsonrpc": "2.0", "id": "1", "result": "0x2A"},
        {"jsonrpc": "2.0", "result": 42},
        {"id": None, "result": "42"},
        {"result": "0x02a", "error": ""},
    ],
)
def test_chain_id__deviations_of_nodes__are_read(node, client, answer):
    node.answers.append(json.dumps(answer).encode())
    assert client.chain_id() == 42


@pytest.mark.parametrize("damage", [{"hash": None}, {"number": "x"}, {"hash": "0x12"}, {"timestamp": []}])
def test_get_block__damaged__is_transient(node, client, damage):
    node.result({"number": "0x10", "hash": WORD, "parentHash": WORD, "timestamp": "0x5"} | damage)
    with pytest.raises(TransientError, match="bad_answer"):
        client.get_block("latest")


def test_get_block__another_block__is_transient(node, client):
    for _ in range(2):
        node.result(BLOCK)
    assert client.get_block("latest").number == 7
    with pytest.raises(TransientError, match="bad_answer"):
        client.get_block(8)


@pytest.mark.parametrize("ask", [ChainClient.block_number, lambda client: client.count_transactions(ALICE)])
def test_block_number__more_than_63_bits__is_transient(node, client, ask):
    node.result(hex(2**63))
    with pytest.raises(TransientError, match="bad_answer"):
        ask(client)


def test_get_block__no_base_fee__is_zero(node, client):
    node.result({"number": 16, "hash": WORD.upper().replace("X", "x"), "parentHash": WORD, "timestamp": "5"})
    assert (client.get_block("latest").base_fee, node.asked[0]["params"]) == (0, ["latest", False])
    node.result({"number": "0x10", "hash": WORD, "parentHash": WORD, "timestamp": "0x5", "baseFeePerGas": None})
    assert client.get_block("latest").base_fee == 0


def test_get_logs__null__is_no_logs(node, client):
    node.result(None)
    assert client.get_logs([ALICE], first=1, last=2) == []


@pytest.mark.parametrize("logs", ["", {}, 5, [None], [{}], ["x"], [{"address": ALICE, "topics": None}]])
def test_get_logs__damaged__is_transient(node, client, logs):
    node.result(logs)
    with pytest.raises(TransientError, match="bad_answer"):
        client.get_logs([ALICE], first=1, last=2)


def test_get_block_logs__null__is_no_logs_only_if_the_node_has_the_block(node, client):
    node.result(None)
    node.result({"number": "0x1"})
    assert client.get_block_logs([ALICE], HEADER) == []
    assert node.asked[1]["method"] == "eth_getBlockByHash"
    node.result(None)
    node.result(None)
    with pytest.raises(TransientError, match="no_block"):
        client.get_block_logs([ALICE], HEADER)


@pytest.mark.parametrize("receipt", [5, [], "x", {"blockNumber": "0x1"}, {"blockNumber": "0x1", "blockHash": WORD}])
def test_find_mined__damaged__is_transient(node, client, receipt):
    node.result(receipt)
    with pytest.raises(TransientError, match="bad_answer"):
        client.find_mined(WORD)


def test_find_mined__error_instead_of_null__is_not_mined(node, client):
    node.error(code=-32000, message="transaction not found")
    assert client.find_mined(WORD) is None


@pytest.mark.parametrize("message", ["words that Covey does not know", "execution reverted", "insufficient funds"])
def test_send_raw__node_has_the_transaction__is_sent_whatever_the_node_says(node, client, message):
    for answer in ({"hash": WORD}, None):
        node.error(code=-32000, message=message)
        node.result(answer)
    client.send_raw(b"\x02\x03")
    assert node.asked[1]["method"] == "eth_getTransactionByHash"
    assert node.asked[1]["params"] == ["0x" + keccak(b"\x02\x03").hex()]
    with pytest.raises(CoveyError, match=message):
        client.send_raw(b"\x02\x03")


def test_send_raw__node_cannot_look_transactions_up__raises_the_refusal(node, client):
    node.error(code=-32000, message="words that Covey does not know")
    node.error(code=-32601, message="the method is not available")
    with pytest.raises(TransientError, match="words that Covey does not know"):
        client.send_raw(b"\x02\x03")


def test_get_priority_fee__history__is_the_median_of_the_newest_blocks_and_not_the_nodes_word(node, client):
    rewards = [[hex(fee * 10**9)] for fee in (5, 1, 9, 0)]
    node.result({"oldestBlock": "0x1", "reward": rewards, "gasUsedRatio": [0.5, 0.1, 1.0, 0]})
    assert client.get_priority_fee() == 5 * 10**9
    assert [asked["method"] for asked in node.asked] == ["eth_feeHistory"]
    assert node.asked[0]["params"] == ["0x14", "latest", [50]]


def test_get_priority_fee__nobody_pays__is_what_nodes_accept(node, client):
    node.result({"reward": [["0x0"], ["0x1"]]})
    assert client.get_priority_fee() == 10**6


@pytest.mark.parametrize("history", [None, {}, {"reward": None}, {"reward": []}, {"reward": [[]]}])
def test_get_priority_fee__no_history__is_the_suggestion_or_one_gwei(node, client, history):
    node.result(history)
    node.result(hex(3 * 10**9))
    assert client.get_priority_fee() == 3 * 10**9
    node.result(history)
    node.result(None)
    assert client.get_priority_fee() == 10**9
    node.error(code=-32601, message="Method not found")
    node.error(code=-32601, message="Method not found")
    assert client.get_priority_fee() == 10**9


def test_get_priority_fee__limit_of_requests__is_not_a_missing_method(node, client):
    node.error(code=-32005, message="request rate limited")
    with pytest.raises(TransientError, match="rate limited"):
        client.get_priority_fee()


def test_request__limit_of_requests_with_a_time__sends_none_before_it(node, client):
    node.status, node.headers = 429, {"Retry-After": "30"}
    node.answers.append(b"slow down")
    for message in ("too many requests: None", r"asks to wait for 30 s"):
        with pytest.raises(TransientError, match=message):
            client.block_number()
    assert len(node.asked) == 1


@pytest.mark.parametrize("status", [400, 403, 413, 500, 503])
def test_request__json_rpc_error_with_an_http_status__is_that_error(node, client, status):
    node.status = status
    node.error(code=3, message="execution reverted: closed")
    with pytest.raises(ProtocolError, match="closed"):
        client.call(ALICE, b"")


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            401,
            b"<html>",
            "chain_refused: the chain node refused eth_blockNumber: HTTP 401. Check the address and the key",
        ),
        (413, b"", "chain_refused: the chain node refused eth_blockNumber: HTTP 413"),
        (403, b'{"message": "no"}', "chain_refused: the chain node refused eth_blockNumber: HTTP 403"),
        (429, b"slow down", "chain_refused: the chain node refused eth_blockNumber: HTTP 429, too many requests"),
        (429, b'{"error": "later"}', "HTTP 429, too many requests: later"),
        (502, b"<html>", "chain_unreachable: the chain node http://.* did not respond to eth_blockNumber: HTTP 502"),
        (500, b'{"error": null}', "chain_unreachable: .*: HTTP 500"),
    ],
)
def test_request__http_status_without_a_json_rpc_error__is_transient(node, client, status, body, message):
    node.status = status
    node.answers.append(body)
    with pytest.raises(TransientError, match=message):
        client.block_number()


def test_request__no_content__is_transient(node, client):
    node.status = 204
    node.answers.append(b"")
    with pytest.raises(TransientError, match="chain_unreachable"):
        client.block_number()


def test_request__deeply_nested_answer__is_transient(node, client):
    node.answers.append(b"[" * 200_000)
    with pytest.raises(TransientError, match="chain_unreachable"):
        client.block_number()


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        ({"code": 3, "message": "execution reverted", "data": "0x"}, ProtocolError, "reverted"),
        ({"code": -32000, "message": "execution reverted: no"}, ProtocolError, "reverted"),
        ({"code": -32003, "message": "nonce too low"}, ProtocolError, "nonce_too_low"),
        ({"code": -32003, "message": "replacement transaction underpriced"}, ProtocolError, "underpriced"),
        (
            {"code": -32003, "message": "Insufficient funds for gas * price + value"},
            OperatorError,
            "insufficient_funds",
        ),
        ({"code": -32003, "message": "max fee per gas less than block base fee"}, ProtocolError, "underpriced"),
        ({"code": -32005, "message": "limit exceeded"}, TransientError, "chain_refused"),
        ({"code": -32000, "message": "header not found"}, TransientError, "chain_refused"),
    ],
)
def test_request__error__has_the_kind_that_the_caller_needs(node, client, error, kind, code):
    node.error(**error)
    with pytest.raises(CoveyError) as caught:
        client.send_raw(b"\x02")
    assert type(caught.value) is kind
    assert caught.value.code == code


def test_send_raw__already_known__is_not_an_error(node, client):
    node.error(code=-32000, message="already known")
    client.send_raw(b"\x02\x03")
    assert node.asked[0]["params"] == ["0x0203"]


def test_call__custom_error__is_named(node, client):
    from covey.chain import abi_codec

    data = abi_codec.keccak(text="PoolNotActive(uint256)")[:4].hex() + "7".zfill(64)
    node.error(code=3, message="execution reverted", data="0x" + data)
    with pytest.raises(ProtocolError) as caught:
        client.call(ALICE, b"")
    assert caught.value.message == "PoolNotActive(7)"


def test_call__block_and_sender__are_passed_on(node, client):
    node.result("0x1234")
    assert client.call(ALICE, b"\x01", block=9, sender=ALICE) == b"\x12\x34"
    assert node.asked[0]["params"] == [{"to": ALICE, "data": "0x01", "from": ALICE}, "0x9"]


def test_call__value__is_sent_with_it(node, client):
    node.result("0x")
    client.call(ALICE, b"\x01", value=16)
    assert node.asked[0]["params"] == [{"to": ALICE, "data": "0x01", "value": "0x10"}, "latest"]


def test_get_block_logs__unknown_block__is_transient(node, client):
    node.error(code=-32000, message="unknown block")
    with pytest.raises(TransientError, match="unknown block"):
        client.get_block_logs([ALICE], HEADER)
    assert node.asked[0]["params"] == [{"address": [ALICE], "blockHash": WORD}]


def test_find_mined__pending_and_failed__are_distinguished(node, client):
    node.result(None)
    assert client.find_mined(WORD) is None
    node.result(
        {"blockNumber": "0x3", "blockHash": WORD, "status": "0x0", "gasUsed": "0x5208", "contractAddress": None}
    )
    mined = client.find_mined(WORD)
    assert mined is not None
    assert (mined.block_number, mined.is_success, mined.gas_used, mined.contract) == (3, False, 21000, None)


def test_get_logs__unordered_answer__is_in_the_order_of_the_chain(node, client):
    entry = {
        "address": ALICE.lower(),
        "topics": [WORD],
        "data": "0x00",
        "blockHash": WORD,
        "transactionHash": WORD,
    }
    places = [("0x2", "0x0"), ("0x1", "0x3"), ("0x1", "0x1")]
    node.result([entry | {"blockNumber": number, "logIndex": index} for number, index in places])
    logs = client.get_logs([ALICE], first=1, last=2)
    assert [(log.block_number, log.log_index) for log in logs] == [(1, 1), (1, 3), (2, 0)]
    assert logs[0].address == ALICE
    assert node.asked[0]["params"][0] == {"address": [ALICE], "fromBlock": "0x1", "toBlock": "0x2"}


def test_estimate_gas__call__is_sent_with_sender_and_value(node, client):
    node.result("0x5208")
    assert client.estimate_gas(ALICE, Call(to=ALICE, data=b"\x05", value=16, label="x")) == 21000
    assert node.asked[0]["params"] == [{"from": ALICE, "to": ALICE, "data": "0x05", "value": "0x10"}]


ODD_ANSWERS = {
    "too many requests": (429, b'{"error":{"code":-32005,"message":"rate"}}'),
    "page of a gateway": (502, b"<html>"),
    "page instead of an answer": (200, b"<html>"),
    "no body": (200, b""),
    "null": (200, b"null"),
    "list": (200, b"[]"),
    "text": (200, b'"x"'),
    "no result": (200, b'{"jsonrpc":"2.0","id":1}'),
    "error is text": (200, b'{"error":"too many requests"}'),
    "error is null": (200, b'{"jsonrpc":"2.0","id":1,"error":null,"result":"0x1"}'),
    "error without a status": (200, b'{"error":{"code":-32005,"message":"daily request count exceeded"}}'),
    "id of another request": (200, b'{"jsonrpc":"2.0","id":999999,"result":"0x1"}'),
    **{
        f"result {text}": (200, b'{"jsonrpc":"2.0","id":1,"result":%s}' % text.encode())
        for text in ("null", "{}", "[]", '"0x"', '"rate limited"')
    },
}
REQUESTS = {
    "get_block": lambda client: client.get_block("latest"),
    "find_block": lambda client: client.find_block(3),
    "block_number": ChainClient.block_number,
    "chain_id": ChainClient.chain_id,
    "get_logs": lambda client: client.get_logs([ALICE], first=1, last=2),
    "get_block_logs": lambda client: client.get_block_logs([ALICE], HEADER),
    "call": lambda client: client.call(ALICE, b""),
    "get_balance": lambda client: client.get_balance(ALICE),
    "get_code": lambda client: client.get_code(ALICE),
    "count_transactions": lambda client: client.count_transactions(ALICE),
    "estimate_gas": lambda client: client.estimate_gas(ALICE, Call(to=ALICE, data=b"", label="x")),
    "get_priority_fee": ChainClient.get_priority_fee,
    "find_mined": lambda client: client.find_mined(WORD),
}


@pytest.mark.parametrize("odd", ODD_ANSWERS)
@pytest.mark.parametrize("name", REQUESTS)
def test_request__odd_answer__is_a_value_of_its_type_or_transient(node, client, name, odd):
    """A role repeats after a TransientError. Any other error would end it."""
    node.status, body = ODD_ANSWERS[odd]
    node.answers.extend([body] * 3)
    value, code = None, ""
    try:
        value = REQUESTS[name](client)
    except TransientError as error:
        code = error.code
    assert code in ("", "bad_answer", "chain_refused", "chain_unreachable", "no_block")
    assert value is None or isinstance(value, int | bytes | list)


def test_request__odd_answers__are_17():
    assert len(ODD_ANSWERS) == 17
