"""A chain's node, over HTTP, that refuses every transaction with a message that a test chooses."""

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from eth_utils.crypto import keccak

from tests.fakes.contracts import ASKS_VERSION, encode_domain


class RefusingNode(BaseHTTPRequestHandler):
    """A devnet on which every transaction is refused with `refusal`."""

    refusal, page = "", ""

    def do_GET(self) -> None:
        self.send(RefusingNode.page.encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"jsonrpc": "2.0", "id": asked["id"]} | self.answer(asked["method"], asked["params"])
        self.send(json.dumps(answer).encode())

    def send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, method: str, params: list[Any]) -> dict[str, object]:
        digest = f"0x{1:064x}"
        results: dict[str, object] = {"eth_chainId": hex(31337), "eth_getBalance": "0x5", "eth_getCode": "0x"}
        results["eth_getTransactionCount"] = "0x0"
        results["eth_getBlockByNumber"] = {"number": "0x1", "hash": digest, "parentHash": digest, "timestamp": "0x1"}
        if method in results:
            return {"result": results[method]}
        if method == "eth_call" and params[0]["data"] == "0x" + ASKS_VERSION.hex():
            return {"result": "0x" + (encode_domain("1") if RefusingNode.refusal == "old" else encode_domain()).hex()}
        if RefusingNode.refusal == "poor":
            return {"error": {"code": -32003, "message": "Insufficient funds for gas * price + value"}}
        name, bracket, rest = RefusingNode.refusal.partition(")")
        data = keccak(text=name + bracket)[:4].hex() + rest
        return {"error": {"code": 3, "message": "execution reverted", "data": f"0x{data}"}}

    def log_message(self, *_: object) -> None:
        pass
