"""Signed HTTP requests: RFC 9421 message signatures and RFC 9530 Content-Digest in the profile of ERC-8128.

A signature covers method, authority, path, query and body. It is valid for at most 60 s, and its nonce may be
used only once. The client signs and the coordinator verifies. The authority is taken from the configuration,
never from a header.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from covey.errors import ProtocolError
from covey.protocol.eip712 import Signer
from covey.protocol.ids import Address
from covey.protocol.secp256k1 import hash_personal, recover_personal

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


class RequestTarget(NamedTuple):
    """Where a request goes. Example: RequestTarget("POST", "127.0.0.1:8000", "/v1/tasks/claim", "")."""

    method: str
    authority: str
    """Host and port, as configured at client and server."""
    path: str
    query: str
    """Query without the question mark. Empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRequest:
    """The parts of a request that its signature covers.

    Example: SignedRequest(method="POST", authority="127.0.0.1:8000", path="/v1/claim", query="", body=b"{}").
    """

    method: str
    authority: str
    path: str
    query: str
    body: bytes

    @property
    def target(self) -> RequestTarget:
        """Where the request goes."""
        return RequestTarget(self.method, self.authority, self.path, self.query)


class RequestSignature(NamedTuple):
    """What the headers of a request say about its signature."""

    signer: str
    """Address that is said to have signed. It is checksummed once the signature is verified."""
    nonce: str
    created: int
    """Time of the signature in Unix seconds."""
    expires: int
    """Time of expiry in Unix seconds. The nonce must be remembered until SKEW_SECONDS after it."""
    content_digest: str
    """Content-Digest header, which the body must match."""
    parameters: str
    """Signed parameters, the last line of the signature base."""
    value: bytes
    """Signature: r, s and v, 65 bytes."""


def compute_content_digest(body: bytes) -> str:
    """Return the value of the Content-Digest header (RFC 9530)."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"


def build_signature_base(request: SignedRequest, parameters: str) -> bytes:
    """Return the signature base (RFC 9421, section 2.5): one line per covered component, then the parameters."""
    return _build_base(request.target, compute_content_digest(request.body), parameters)


def _build_base(target: RequestTarget, content_digest: str, parameters: str) -> bytes:
    return (
        f'"@method": {target.method}\n'
        f'"@authority": {target.authority}\n'
        f'"@path": {target.path}\n'
        f'"@query": ?{target.query}\n'
        f'"content-digest": {content_digest}\n'
        f'"@signature-params": {parameters}'
    ).encode()


def sign_request(request: SignedRequest, signer: Signer, *, chain_id: int, now: int, nonce: str) -> dict[str, str]:
    """Return the three headers that carry the signature of a request. `now` is in Unix seconds."""
    parameters = (
        f'{_COMPONENTS};created={now};expires={now + WINDOW_SECONDS};nonce="{nonce}"'
        f';keyid="eip155:{chain_id}:{signer.address}"'
    )
    signature = signer.sign_digest(hash_personal(build_signature_base(request, parameters)))
    return {
        "content-digest": compute_content_digest(request.body),
        "signature-input": f"{LABEL}={parameters}",
        "signature": f"{LABEL}=:{base64.b64encode(signature).decode()}:",
    }


def verify_request(request: SignedRequest, headers: Mapping[str, str], *, chain_id: int, now: int) -> RequestSignature:
    """Verify the signature of a request, and return it. `now` is in Unix seconds.

    The caller must then check that the nonce has not been used before.

    Raises ProtocolError with code "unsigned", "bad_signature", "digest_mismatch" or "expired_request".
    """
    signature = read_signature(headers, chain_id=chain_id, now=now)
    require_body(signature, request.body)
    return signature._replace(signer=require_signer(signature, request.target))


def read_signature(headers: Mapping[str, str], *, chain_id: int, now: int) -> RequestSignature:
    """Return what the headers say about the signature, none of which is verified yet.

    Raises ProtocolError with code "unsigned", "bad_signature" or "expired_request".
    """
    if not all(name in headers for name in ("signature-input", "signature", "content-digest")):
        raise _refuse("unsigned", "the request lacks a header: signature-input, signature or content-digest")
    label, _, parameters = headers["signature-input"].partition("=")
    match, value = _PARAMETERS.fullmatch(parameters), _SIGNATURE.fullmatch(headers["signature"])
    if match is None or label != LABEL:
        raise _refuse("bad_signature", "the header signature-input does not have the required form")
    if value is None:
        raise _refuse("bad_signature", "the header signature does not have the required form")
    created, expires, nonce, chain, address = match.groups()
    if int(chain) != chain_id:
        raise _refuse(
            "bad_signature", f"the request was signed for chain {chain}, but this service is on chain {chain_id}"
        )
    if not (int(created) <= now + SKEW_SECONDS and now <= int(expires) <= int(created) + WINDOW_SECONDS):
        raise _refuse(
            "expired_request", f"the signature is valid from {created} to {expires}, but the time here is {now}"
        )
    return RequestSignature(
        signer=address,
        nonce=nonce,
        created=int(created),
        expires=int(expires),
        content_digest=headers["content-digest"],
        parameters=parameters,
        value=base64.b64decode(value[1]),
    )


def require_signer(signature: RequestSignature, target: RequestTarget) -> Address:
    """Return the checksummed address of the signer, after verifying the signature. The body is not needed for that.

    Raises ProtocolError("bad_signature").
    """
    base = _build_base(target, signature.content_digest, signature.parameters)
    try:
        signer = recover_personal(base, signature.value)
    except ValueError as error:
        raise _refuse("bad_signature", "no signer can be recovered from the signature") from error
    if signer.lower() != signature.signer.lower():
        raise _refuse("bad_signature", f"the request was not signed by {signature.signer}")
    return signer


def require_body(signature: RequestSignature, body: bytes) -> None:
    """Raise ProtocolError("digest_mismatch") unless the body is the one that was signed."""
    if signature.content_digest != compute_content_digest(body):
        raise _refuse("digest_mismatch", "the header content-digest does not match the body of the request")


def _refuse(code: str, message: str) -> ProtocolError:
    return ProtocolError(code, message, status=401)
