"""A proxy before a chain's node, which a test makes slow, silent, unwilling, stale or mad."""

import itertools
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from eth_utils.crypto import keccak


class Trouble(Enum):
    """What the proxy does with a request."""

    NONE = auto()
    SLOW = auto()
    """It answers 100 ms later."""
    SILENT = auto()
    """It answers nothing until the trouble is over."""
    UNWILLING = auto()
    """It answers 429, as a provider does whose limit is reached."""
    STALE = auto()
    """It repeats what it has answered to the same question before, as a provider does whose cache hangs."""
    GARBAGE = auto()
    """It answers what nobody can read."""
    BEHIND = auto()
    """It lacks the newest blocks, as a backend of a provider does that lags."""
    BLIND = auto()
    """It has no logs, as a backend that has not indexed the newest blocks."""
    FORGETFUL = auto()
    """It accepts transactions and does not pass them on."""


GARBAGE = (
    b"<html><h1>502 Bad Gateway</h1></html>",
    b'{"jsonrpc": "2.0", "id": 1, "result": "0x',
    b'{"jsonrpc": "2.0", "id": 1, "result": "0xnothing"}',
    b'{"jsonrpc": "2.0", "id": 1, "result": null}',
    b'{"jsonrpc": "2.0", "id": 1, "result": {"number": null, "hash": 7, "transactions": "0x"}}',
    b'{"jsonrpc": "2.0", "id": 1, "result": [{}, null, "0x"]}',
    b'{"jsonrpc": "2.0", "id": 1, "error": {"code": "x", "message": null, "data": 7}}',
    b"[]",
    b"\xff\xfe\x00",
    b"",
)
SEND = "eth_sendRawTransaction"
BLOCKS_BEHIND = 3
"""Number of newest blocks that BEHIND lacks."""
_PLACE_OF_TAG = {
    "eth_call": 1,
    "eth_getBalance": 1,
    "eth_getCode": 1,
    "eth_getTransactionCount": 1,
    "eth_estimateGas": 1,
    "eth_getBlockByNumber": 0,
}
MAX_ANSWERS = 10_000
"""Answers that are kept for STALE."""


class TroubledNode(ThreadingHTTPServer):
    """Example: `with open_troubled_node(anvil.url) as node: node.trouble = Trouble.SLOW`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = url
        self.trouble = Trouble.NONE
        self.answers: dict[bytes, bytes] = {}
        """Newest answers, without their ids, by method and parameters."""
        self.garbage = itertools.cycle(GARBAGE)
        self.troubled = 0
        """Number of requests that met a trouble."""
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that has left or a node that is stopped."""


@contextmanager
def open_troubled_node(url: str) -> Iterator[TroubledNode]:
    """Run a proxy before the node at a URL."""
    with TroubledNode(url) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.trouble = Trouble.NONE
        server.shutdown()
        thread.join(timeout=60)


class _Handler(BaseHTTPRequestHandler):
    server: TroubledNode
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.troubled += self.server.trouble is not Trouble.NONE
        if self.server.trouble is Trouble.SLOW:
            time.sleep(0.1)
        while self.server.trouble is Trouble.SILENT:
            time.sleep(0.02)
        if self.server.trouble is Trouble.UNWILLING:
            self._send(429, b'{"error": "too many requests"}')
            return
        if self.server.trouble is Trouble.GARBAGE:
            self._send(200, next(self.server.garbage))
            return
        request = json.loads(body)
        if self.server.trouble is Trouble.BLIND and request["method"] == "eth_getLogs":
            self._answer(request, [])
            return
        if self.server.trouble is Trouble.FORGETFUL and request["method"] == SEND:
            self._answer(request, "0x" + keccak(bytes.fromhex(request["params"][0][2:])).hex())
            return
        if self.server.trouble is Trouble.BEHIND:
            self._answer_from_behind(request)
            return
        key = json.dumps([request["method"], request.get("params")]).encode()
        known = self.server.answers.get(key) if self.server.trouble is Trouble.STALE else None
        if known is None:
            known = self._forward(body)
            self._keep(key, request["method"], known)
        self._send(200, json.dumps(json.loads(known) | {"id": request["id"]}).encode())

    def _forward(self, body: bytes) -> bytes:
        asked = urllib.request.Request(self.server.target, body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return bytes(answer.read())

    def _ask(self, method: str, *params: Any) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return json.loads(self._forward(json.dumps(body).encode()))

    def _answer(self, request: dict[str, Any], result: Any) -> None:
        self._send(200, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode())

    def _answer_from_behind(self, request: dict[str, Any]) -> None:
        """Answer as Geth does that lacks the newest blocks: with null, an empty list, or an error for a hash."""
        method, params = request["method"], list(request.get("params") or [])
        newest = max(0, int(self._ask("eth_blockNumber")["result"], 16) - BLOCKS_BEHIND)
        place = _PLACE_OF_TAG.get(method)
        if place is not None:
            tag = params[place] if len(params) > place else "latest"
            tag = hex(newest) if tag in ("latest", "pending") else tag
            params[place:] = [tag, *params[place + 1 :]]
            if tag.startswith("0x") and int(tag, 16) > newest:
                self._answer(request, None)
                return
        answer = self._ask(method, *params)
        found = answer.get("result")
        if method == "eth_blockNumber":
            found = hex(newest)
        elif method == "eth_getLogs" and isinstance(found, list):
            found = [log for log in found if int(log["blockNumber"], 16) <= newest]
            if "blockHash" in params[0]:
                block = self._ask("eth_getBlockByHash", params[0]["blockHash"], False)["result"]
                if block is None or int(block["number"], 16) > newest:
                    answer["error"] = {"code": -32000, "message": "unknown block"}
        elif isinstance(found, dict) and int(found.get("blockNumber") or found.get("number") or "0x0", 16) > newest:
            found = None
        if "error" in answer:
            self._send(200, json.dumps({"jsonrpc": "2.0", "id": request["id"], "error": answer["error"]}).encode())
            return
        self._answer(request, found)

    def _keep(self, key: bytes, method: str, answer: bytes) -> None:
        if len(self.server.answers) >= MAX_ANSWERS:
            self.server.answers.clear()
        if method != SEND:
            self.server.answers[key] = answer

    def _send(self, status: int, body: bytes) -> None:
        with suppress(ConnectionError):  # The client has given up.
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
