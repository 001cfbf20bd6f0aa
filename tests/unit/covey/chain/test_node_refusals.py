"""Refusals as clients and providers word them. The sources are their repositories and their users' reports."""

import pytest

from covey.chain.abi_codec import keccak
from covey.chain.node_refusals import build_error, is_busy, is_unknown_transaction
from covey.errors import OperatorError, ProtocolError, TransientError

pytestmark = pytest.mark.unit

SENT = [
    ("Geth", -32000, "already known", "already_known"),
    ("Geth 1.9", -32000, "known transaction: 0x1f", "already_known"),
    ("Nethermind", -32010, "AlreadyKnown", "already_known"),
    ("Besu", -32000, "Known transaction", "already_known"),
    ("Erigon", -32000, "ALREADY_KNOWN: already known", "already_known"),
    ("OpenEthereum", -32010, "Transaction with the same hash was already imported.", "already_known"),
    ("zkSync", 3, "known transaction. transaction with hash 0x1f is already in the system", "already_known"),
    ("Evmos", -32000, "tx already in mempool", "already_known"),
    ("Geth", -32000, "nonce too low: next nonce 5, tx nonce 4", "nonce_too_low"),
    ("Nethermind", -32010, "OldNonce, Current nonce: 5, nonce of rejected tx: 4", "nonce_too_low"),
    ("Besu", -32001, "Nonce too low", "nonce_too_low"),
    ("OpenEthereum", -32010, "Transaction nonce is too low. Try incrementing the nonce.", "nonce_too_low"),
    ("Hardhat", -32000, "Nonce too low. Expected nonce to be 5 but got 4.", "nonce_too_low"),
    ("Geth", -32000, "replacement transaction underpriced", "underpriced"),
    ("Geth 1.14", -32000, "transaction underpriced: gas tip cap 1, minimum needed 1000000000", "underpriced"),
    ("Geth 1.15", -32000, "transaction gas price below minimum: gas tip cap 0, minimum needed 1", "underpriced"),
    ("Arbitrum", -32000, "max fee per gas less than block base fee: address 0x1f", "underpriced"),
    ("Nethermind", -32010, "FeeTooLowToCompete", "underpriced"),
    ("Nethermind", -32010, "ReplacementNotAllowed", "underpriced"),
    ("Besu", -32009, "Gas price below configured minimum gas price", "underpriced"),
    ("Erigon", -32000, "fee too low", "underpriced"),
    (
        "OpenEthereum",
        -32010,
        "Transaction gas price is too low. There is another transaction with same nonce in the queue.",
        "underpriced",
    ),
    ("Hardhat", -32000, "Transaction maxFeePerGas (1) is too low for the next block", "underpriced"),
    ("Geth", -32000, "insufficient funds for gas * price + value: balance 0, tx cost 5", "insufficient_funds"),
    ("Nethermind", -32010, "InsufficientFunds, Account balance: 0, cumulative cost: 5", "insufficient_funds"),
    ("Besu", -32004, "Upfront cost exceeds account balance", "insufficient_funds"),
    ("Hardhat", -32000, "Sender doesn't have enough funds to send tx.", "insufficient_funds"),
    ("zkSync", 3, "Not enough balance to cover the fee.", "insufficient_funds"),
    ("Hardhat", -32603, "VM Exception while processing transaction: revert nonce too low", "reverted"),
    ("Geth", -32000, "nonce too high", "chain_refused"),
    ("Nethermind", -32010, "NonceGap, Future nonce. Expected nonce: 5", "chain_refused"),
    ("Geth", -32000, "intrinsic gas too low: gas 1, minimum needed 21000", "chain_refused"),
    ("Geth", -32000, "exceeds block gas limit", "chain_refused"),
    ("Geth", -32000, "unknown transaction type", "chain_refused"),
]
KINDS = {"insufficient_funds": OperatorError, "chain_refused": TransientError}


@pytest.mark.parametrize(("node", "number", "message", "code"), SENT)
def test_build_error__refusal_to_send__has_one_code_for_all_wordings(node: str, number: int, message: str, code: str):
    error = build_error("eth_sendRawTransaction", {"code": number, "message": message})
    assert (error.code, type(error)) == (code, KINDS.get(code, ProtocolError))
    assert message in error.message


DATA = "0x" + keccak(text="PoolNotActive(uint256)")[:4].hex() + "7".zfill(64)
REVERTS = [
    ("Geth", {"code": 3, "message": "execution reverted", "data": DATA}),
    ("Besu", {"code": -32000, "message": "Execution reverted", "data": DATA}),
    ("OpenEthereum", {"code": -32015, "message": "VM execution error.", "data": f"Reverted {DATA}"}),
    ("Nethermind", {"code": -32015, "message": "out of this world", "data": DATA}),
    (
        "Hardhat",
        {"code": -32603, "message": "Error: reverted", "data": {"message": "x", "txHash": "0x1f", "data": DATA}},
    ),
    ("Ganache", {"code": -32000, "message": "revert", "data": {"0x1f": {"error": "revert", "return": DATA}}}),
    ("MetaMask", {"code": -32603, "message": "Internal", "data": {"originalError": {"data": DATA, "code": 3}}}),
    ("number as text", {"code": "3", "message": "failed", "data": DATA}),
]


@pytest.mark.parametrize(("node", "error"), REVERTS)
def test_build_error__revert_data_in_any_place__names_the_contracts_error(node: str, error: dict):
    for method in ("eth_call", "eth_estimateGas"):
        built = build_error(method, error)
        assert (built.code, built.message) == ("reverted", "PoolNotActive(7)")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"code": 3, "message": "execution reverted: closed"}, "execution reverted: closed"),
        ({"code": 3, "message": "execution reverted: closed", "data": "0x"}, "execution reverted: closed"),
        ({"code": -32015, "message": "VM execution error.", "data": "Reverted"}, "VM execution error.: Reverted"),
        ({"code": -32000, "message": "invalid opcode: INVALID"}, "invalid opcode: INVALID"),
        ({"code": -32000, "message": "gas required exceeds allowance (50000000)"}, "gas required exceeds allowance"),
        ({"code": 3, "message": "reverted", "data": "0x123"}, "reverted"),
        ({"code": 3, "message": "ERC20: transfer amount exceeds balance", "data": "0x08c379a0"}, "cannot be decoded"),
    ],
)
def test_build_error__revert_without_known_data__quotes_the_node(error: dict, reason: str):
    built = build_error("eth_estimateGas", error)
    assert built.code == "reverted"
    assert reason in built.message


RANGES = [
    (-32614, "eth_getLogs is limited to a 10,000 range"),
    (-32600, "You can make eth_getLogs requests with up to a 10 block range."),
    (-32005, "query returned more than 10000 results. Try with this block range [0x1, 0x2]."),
    (-32602, "query exceeds max block range 1000"),
    (-32000, "Log response size exceeded. this block range should work: [0x1, 0x2]"),
    (-32005, "limit exceeded"),
    (-32000, "query timeout exceeded"),
    (-32701, "exceed maximum block range: 5000, transaction reverted"),
]


@pytest.mark.parametrize(("number", "message"), RANGES)
def test_build_error__refused_range__is_transient_and_not_busy(number: int, message: str):
    error = build_error("eth_getLogs", {"code": number, "message": message})
    assert isinstance(error, TransientError)
    assert (error.code, is_busy(error)) == ("chain_refused", False)


@pytest.mark.parametrize(
    "error",
    [
        {"code": 429, "message": "Your app has exceeded its compute units per second capacity."},
        {"code": -32005, "message": "daily request count exceeded, request rate limited"},
        {"code": -32005, "message": "project ID request rate exceeded"},
        {"code": -32007, "message": "50/second request limit reached - reduce calls per second"},
        {"code": -32016, "message": "over rate limit"},
        "Too many requests",
    ],
)
def test_is_busy__limits_of_requests__are_known(error: object):
    built = build_error("eth_getLogs", error)
    assert isinstance(built, TransientError)
    assert is_busy(built)


@pytest.mark.parametrize(
    "error",
    ["down", 5, True, [1], {}, {"message": None}, {"message": 5, "code": None}, {"code": [], "data": 5, "message": {}}],
)
def test_build_error__any_form__is_transient(error: object):
    for method in ("eth_chainId", "eth_call", "eth_sendRawTransaction", "eth_getLogs"):
        assert build_error(method, error).code == "chain_refused"


def test_build_error__long_message_with_control_characters__is_one_short_line():
    message = build_error("eth_chainId", {"message": "bad\n\x1b[31m" + "x" * 10_000}).message
    assert message.isprintable()
    assert len(message) < 600


@pytest.mark.parametrize(("message", "is_unknown"), [("transaction not found", True), ("header not found", False)])
def test_is_unknown_transaction__messages__are_told_apart(message: str, is_unknown: bool):
    error = build_error("eth_getTransactionReceipt", {"code": -32000, "message": message})
    assert isinstance(error, TransientError)
    assert is_unknown_transaction(error) is is_unknown
