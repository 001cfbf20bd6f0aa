"""Signed HTTP requests: RFC 9421 message signatures and RFC 9530 Content-Digest in the profile of ERC-8128.

A signature covers method, authority, path, query and body. It is valid for at most 60 s, and its nonce may be
used only once. The client signs and the coordinator verifies. The authority is taken from the configuration,
never from a header.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from eth_keys.exceptions import BadSignature
from eth_utils.exceptions import ValidationError

from covey.errors import ProtocolError
from covey.protocol.accounts import Account, encode_defunct
from covey.protocol.eip712 import Signer
from covey.protocol.ids import Address

WINDOW_SECONDS = 60
"""Maximum validity of a signature, in seconds."""
SKEW_SECONDS = 5
"""Maximum number of seconds by which a request's creation time may be in the future, because clocks differ."""
LABEL = "eth"
_COMPONENTS = '("@method" "@authority" "@path" "@query" "content-digest")'
_PARAMETERS = re.compile(
    re.escape(_COMPONENTS)
    + r';created=(\d{1,12});expires=(\d{1,12});nonce="([A-Za-z0-9_-]{16,64})"'
    + r';keyid="eip155:(\d{1,18}):(0x[0-9a-fA-F]{40})"',
    re.ASCII,
)
_SIGNATURE = re.compile(LABEL + r"=:([A-Za-z0-9+/]{87}=):")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """The parts of a request that its signature covers.

    Example: SignedRequest(method="POST", authority="127.0.0.1:8000", path="/v1/claim", query="", body=b"{}").
    """

    method: str
    authority: str
    """Host and port, as configured at client and server."""
    path: str
    query: str
    """Query without the question mark. Empty if there is none."""
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSignature:
    """Signer, nonce and expiry of a verified signature."""

    signer: Address
    nonce: str
    expires: int
    """Time of expiry in Unix seconds. The nonce must be remembered until SKEW_SECONDS after it."""


def compute_content_digest(body: bytes) -> str:
    """Return the value of the Content-Digest header (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def build_signature_base(request: SignedRequest, parameters: str) -> bytes:
    """Return the signature base (RFC 9421, section 2.5): one line per covered component, then the parameters."""
    return "\n".join(
        (
            f'"@method": {request.method}',
            f'"@authority": {request.authority}',
            f'"@path": {request.path}',
            f'"@query": ?{request.query}',
            f'"content-digest": {compute_content_digest(request.body)}',
            f'"@signature-params": {parameters}',
        )
    ).encode()


def sign_request(request: SignedRequest, signer: Signer, *, chain_id: int, now: int, nonce: str) -> dict[str, str]:
    """Return the three headers that carry the signature of a request. `now` is in Unix seconds."""
    parameters = (
        f'{_COMPONENTS};created={now};expires={now + WINDOW_SECONDS};nonce="{nonce}"'
        f';keyid="eip155:{chain_id}:{signer.address}"'
    )
    signed = signer.sign_message(encode_defunct(build_signature_base(request, parameters)))
    return {
        "content-digest": compute_content_digest(request.body),
        "signature-input": f"{LABEL}={parameters}",
        "signature": f"{LABEL}=:{base64.b64encode(bytes(signed.signature)).decode()}:",
    }


def verify_request(request: SignedRequest, headers: Mapping[str, str], *, chain_id: int, now: int) -> RequestSignature:
    """Verify the signature of a request. `now` is in Unix seconds.

    The caller must then check that the nonce has not been used before.

    Raises ProtocolError with code "unsigned", "bad_signature", "digest_mismatch" or "expired_request".
    """
    if "signature-input" not in headers or "signature" not in headers:
        raise _refuse("unsigned", "the request has no signature")
    if headers.get("content-digest") != compute_content_digest(request.body):
        raise _refuse("digest_mismatch", "the header content-digest does not match the body of the request")
    label, _, parameters = headers["signature-input"].partition("=")
    match = _PARAMETERS.fullmatch(parameters)
    if match is None or label != LABEL:
        raise _refuse("bad_signature", "the header signature-input does not have the required form")
    created, expires, nonce, chain, address = match.groups()
    if int(chain) != chain_id:
        raise _refuse(
            "bad_signature", f"the request was signed for chain {chain}, but this service is on chain {chain_id}"
        )
    if not (int(created) <= now + SKEW_SECONDS and now <= int(expires) <= int(created) + WINDOW_SECONDS):
        raise _refuse(
            "expired_request", f"the signature is valid from {created} to {expires}, but the time here is {now}"
        )
    signer = _recover(build_signature_base(request, parameters), headers["signature"])
    if signer.lower() != address.lower():
        raise _refuse("bad_signature", f"the request was not signed by {address}")
    return RequestSignature(signer=signer, nonce=nonce, expires=int(expires))


def _recover(base: bytes, header: str) -> Address:
    match = _SIGNATURE.fullmatch(header)
    if match is None:
        raise _refuse("bad_signature", "the header signature does not have the required form")
    try:
        raw = base64.b64decode(match[1], validate=True)
        return Address(Account.recover_message(encode_defunct(base), signature=raw))
    except (binascii.Error, ValueError, BadSignature, ValidationError) as error:
        raise _refuse("bad_signature", "no signer can be recovered from the signature") from error


def _refuse(code: str, message: str) -> ProtocolError:
    return ProtocolError(code, message, status=401)
