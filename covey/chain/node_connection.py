"""HTTP requests to one address of a chain's node, by web3.py. Only this module imports web3.

`covey.chain.json_rpc` imports it at the first request, so that a process without a chain does not load web3.
"""

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

import covey.protocol.accounts  # noqa: F401  # isort: skip  # comes before web3, which imports eth-account

from requests import HTTPError, Response
from web3 import HTTPProvider
from web3.exceptions import Web3Exception
from web3.types import RPCEndpoint

from covey.chain.bounded_http import AnswerTooLargeError, BoundedSession
from covey.chain.node_refusals import build_error
from covey.errors import TransientError
from covey.runtime.urls import show_host

MAX_RETRY_AFTER = 60.0
"""Longest time in seconds for which a node's `Retry-After` is obeyed."""


class NodeConnection:
    """Connection to one address.

    Example: `NodeConnection("http://127.0.0.1:8545", timeout_s=10.0, max_bytes=2**25).request("eth_chainId")`.

    `timeout_s` is the time in seconds for a whole answer, which may have `max_bytes` bytes.
    """

    def __init__(self, url: str, *, timeout_s: float, max_bytes: int) -> None:
        self.url = url
        self.barred_until = 0.0
        """Time of the monotonic clock before which the node wants no further request (`Retry-After`)."""
        self._max_bytes = max_bytes
        self._provider = HTTPProvider(
            url,
            request_kwargs={"timeout": timeout_s},
            session=BoundedSession(max_bytes=max_bytes),
            exception_retry_configuration=None,
        )

    def request(self, method: str, *params: Any) -> Any:
        """Send one request and return its result, of which nothing is checked.

        Raises TransientError, ProtocolError or OperatorError, depending on the node's response.
        """
        if (left := self.barred_until - time.monotonic()) > 0:
            host = show_host(self.url)
            message = f"the chain node {host} answered too many requests, and asks to wait for {left:.0f} s"
            raise TransientError("chain_refused", message)
        try:
            answer: Any = self._provider.make_request(RPCEndpoint(method), list(params))
        except HTTPError as error:
            answer = self._read_http_error(method, cast("Response", error.response))
        except AnswerTooLargeError as error:
            raise self.build_bad_answer(method, f"more than {self._max_bytes} bytes") from error
        # The errors of requests are OSErrors. ValueError is raised for an answer that is not JSON.
        except (OSError, ValueError, RecursionError, Web3Exception) as error:
            raise self._build_unreachable(method, type(error).__name__) from error
        if not isinstance(answer, dict) or not answer.keys() & {"result", "error", "jsonrpc"}:
            raise self.build_bad_answer(method, ascii(answer))
        # Some nodes add "error": null to a result, and some leave out a result that is null.
        refusal, result = answer.get("error"), answer.get("result")
        if refusal or (refusal is not None and result is None):
            raise build_error(method, refusal)
        return result

    def build_bad_answer(self, method: str, result: str) -> TransientError:
        """Return the error for a result that cannot be read."""
        return TransientError(
            "bad_answer",
            f"the chain node {show_host(self.url)} answered {method} with {result[:80]}, which cannot be "
            "read. Set rpc_url to a different node if this persists",
        )

    def _read_http_error(self, method: str, response: Response) -> dict[str, Any]:
        """Return the JSON-RPC error that came with an HTTP status of failure, or one that names the status.

        Raises TransientError("chain_unreachable") if a gateway says that the node is away.
        """
        status = response.status_code
        if status in (429, 503):
            self.barred_until = time.monotonic() + read_retry_after(response.headers.get("Retry-After"))
        try:
            answer = json.loads(response.content)
        except (ValueError, RecursionError):
            answer = None
        refusal = answer.get("error") if isinstance(answer, dict) else None
        if status == 429:
            return {"error": f"HTTP 429, too many requests: {refusal or answer}"}
        if not refusal and status >= 500:
            raise self._build_unreachable(method, f"HTTP {status}")
        return {"error": refusal or f"HTTP {status}. Check the address and the key in rpc_url"}

    def _build_unreachable(self, method: str, name: str) -> TransientError:
        return TransientError(
            "chain_unreachable",
            f"the chain node {show_host(self.url)} did not respond to {method}: "
            f"{name}. Start that node, or correct rpc_url in the deployment "
            "file or the settings, or COVEY_RPC_URL",
        )


def read_retry_after(text: str | None) -> float:
    """Return the seconds of a header `Retry-After`, which has a number or a date. 0 if it names no time to come."""
    if text is None:
        return 0.0
    if text.strip().isdecimal():
        return float(min(int(text.strip()[:9]), MAX_RETRY_AFTER))
    with suppress(ValueError):
        date = parsedate_to_datetime(text)
        left = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        return min(max(left, 0.0), MAX_RETRY_AFTER)
    return 0.0
