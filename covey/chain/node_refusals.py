"""What a node's refusal means, whichever client wrote it.

JSON-RPC leaves wordings, codes and the place of a revert's data to the client. The wordings here are those of Geth,
Erigon, Reth, Nethermind, Besu, OpenEthereum, Hardhat, Anvil, Ganache, Arbitrum, Optimism and zkSync. They are compared
without spaces, signs and case. A wording that is not known makes a TransientError, which the caller survives.
"""

import re
from typing import Any

from covey.chain import abi_codec
from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError

SEND = "eth_sendRawTransaction"
_EXECUTING = (SEND, "eth_call", "eth_estimateGas")
_REVERT_CODES = (3, -32015)
_MAX_LENGTH = 500
"""Number of characters of a node's message that are shown. Some nodes quote whole contracts."""
_MAX_DEPTH = 6

_ALREADY_KNOWN = re.compile(
    r"already(known|imported|exists|in(the)?(tx|transaction)?(system|mempool|mpool|pool))|(?<!un)knowntransaction"
)
_NONCE_USED = re.compile(r"nonce(is)?toolow|oldnonce|noncealreadyused|noncehasalreadybeenused")
_UNDERPRICED = re.compile(
    r"underpriced|(fee|price)(pergas)?(is|supplied)*toolow|lessthanblockbasefee|replacementnotallowed"
    r"|below(the)?(configured|required)?minimum"
)
_NO_FUNDS = re.compile(
    r"insufficient(sender)?(funds|balance)|notenough(funds|balance|ether)|(doesnt|doesnot)haveenoughfunds"
    r"|exceeds(the)?(account|sender)s?balance"
)
_FAILED_EXECUTION = re.compile(
    r"revert|vmexecutionerror|vmexception|evmerror|invalidopcode|badinstruction|invalidjump|outofgas|gasrequiredexceeds"
    r"|stack(under|over)flow|alwaysfailing|executionfail|cannotestimategas"
)
_RATE_LIMITED = re.compile(r"ratelimit|toomanyrequest|requestlimit|requestrate|requestcount|computeunits")
_NO_TRANSACTION = re.compile(r"(transaction|tx)(was)?notfound|unknowntransaction")


def build_error(method: str, error: object) -> CoveyError:
    """Return what the caller must do about the member `error` of a node's answer."""
    fields = error if isinstance(error, dict) else {}
    message = _describe(error)
    text = _squeeze(message)
    code = _read_code(fields.get("code"))
    if method in _EXECUTING:
        data = _find_data(fields.get("data"))
        is_reverted = "revert" in text or (method != SEND and (code in _REVERT_CODES or len(data) >= 4))
        if not is_reverted and method == SEND:
            known = _build_send_error(text, message)
            if known is not None:
                return known
        if not is_reverted and _NO_FUNDS.search(text):
            return OperatorError("insufficient_funds", message, fix="Send ether to the account that pays the gas")
        if is_reverted or code in _REVERT_CODES or (method != SEND and _FAILED_EXECUTION.search(text)):
            return ProtocolError("reverted", abi_codec.describe_revert(data) if data else message)
    return TransientError("chain_refused", f"the chain node refused {method}: {message}")


def is_busy(error: TransientError) -> bool:
    """Return whether a node refused a request because its limit of requests is reached."""
    return error.code == "chain_refused" and _RATE_LIMITED.search(_squeeze(error.message)) is not None


def is_unknown_transaction(error: TransientError) -> bool:
    """Return whether a node refused a question about a transaction because it does not have the transaction.

    The specification asks for null instead of an error.
    """
    return error.code == "chain_refused" and _NO_TRANSACTION.search(_squeeze(error.message)) is not None


def _build_send_error(text: str, message: str) -> ProtocolError | None:
    if _NONCE_USED.search(text):
        return ProtocolError("nonce_too_low", message)
    if _UNDERPRICED.search(text):
        return ProtocolError("underpriced", message)
    if _ALREADY_KNOWN.search(text):
        return ProtocolError("already_known", message)
    return None


def _describe(error: object) -> str:
    """Return the node's message on one line. It can be in `message`, `data` or the error itself."""
    message = error
    if isinstance(error, dict):
        data = error.get("data")
        parts = [error.get("message"), data.get("message") if isinstance(data, dict) else data]
        texts = [part for part in parts if isinstance(part, str) and part and not part.startswith("0x")]
        message = ": ".join(dict.fromkeys(texts)) or error.get("message") or error
    shown = str(message)[:_MAX_LENGTH]
    return "".join(char if char.isprintable() else " " for char in shown).strip()


def _squeeze(message: str) -> str:
    return re.sub("[^a-z]", "", message.lower())


def _read_code(code: object) -> int | None:
    try:
        return int(code)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return None


def _find_data(data: Any, depth: int = 0) -> bytes:
    """Return the revert data in the member `data` of an error. Empty if there is none.

    It is a hexadecimal string, one after the word "Reverted", or inside objects that also hold a transaction's hash.
    """
    if isinstance(data, str):
        match = re.fullmatch("(?:reverted *)?0x((?:[0-9a-f]{2})*)", data.strip(), re.IGNORECASE)
        return bytes.fromhex(match[1]) if match else b""
    if not isinstance(data, dict) or depth >= _MAX_DEPTH:
        return b""
    named = [data.get(name) for name in ("data", "return", "result", "output")]
    nested = [value for value in data.values() if isinstance(value, dict)]
    return next((found for value in (*named, *nested) if (found := _find_data(value, depth + 1))), b"")
