"""Descriptions of responses in the OpenAPI document: the statuses of refusals, and content that is not JSON.

A route declares its own refusals, and its router those that all its routes share. The application adds `EVERY_ROUTE`.
"""

from typing import Any

from covey.protocol.api.common import ErrorBody

Responses = dict[int | str, dict[str, Any]]
"""Descriptions of responses by status, in the format of FastAPI's parameter `responses`."""
_MEANINGS = {
    400: "The content contradicts itself, or differs from the announced content.",
    401: "The signature of the request or of its content is missing, wrong or expired, or its nonce was used before.",
    403: "The sender is not allowed to do this.",
    404: "The named object does not exist.",
    409: "The request contradicts what is recorded, or it comes too early or too late.",
    413: "The body or the file is too large.",
    422: "The path, the query or the body does not have the required form.",
    429: "The sender has sent too many requests.",
    500: "The coordinator has a defect, or its setup is wrong.",
    503: "Something that the coordinator needs is not available. The same request may succeed later.",
}


def name_refusals(*statuses: int) -> Responses:
    """Return the descriptions of responses with an `ErrorBody`, by status. Example: name_refusals(404, 409)."""
    return {status: {"model": ErrorBody, "description": _MEANINGS[status]} for status in statuses}


def name_content(media_type: str) -> Responses:
    """Return the description of a response with status 200 that is not JSON.

    The route must use the plain class `Response`. With any other class, FastAPI would describe the refusals with the
    media type of that class.
    """
    return {200: {"content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}}


def describe_signatures(document: dict[str, Any]) -> None:
    """Add the signatures of requests to an OpenAPI document. A signature consists of three headers, all required.

    A request is signed if its route has one of SIGNED_TAGS.
    """
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    for header, text in _HEADERS.items():
        schemes[header] = {"type": "apiKey", "in": "header", "name": header, "description": text}
    operations = (operation for path in document["paths"].values() for operation in path.values())
    for operation in operations:
        if SIGNED_TAGS & set(operation.get("tags", ())):
            operation["security"] = [{header: [] for header in _HEADERS}]


SIGNED_TAGS = frozenset({"worker", "validator", "trainer", "operator"})
"""Tags of routes whose requests are signed with the wallet of this role."""
_HEADERS = {
    "Content-Digest": "SHA-256 of the body (RFC 9530), for example `sha-256=:BASE64:`.",
    "Signature-Input": "Covered components and parameters of the signature (RFC 9421) in the profile of ERC-8128: "
    '`eth=("@method" "@authority" "@path" "@query" "content-digest");created=SECONDS;expires=SECONDS;nonce="NONCE";'
    'keyid="eip155:CHAIN:ADDRESS"`. It expires at most 60 s after it was created, and its nonce is used once.',
    "Signature": "Signature of the signature base as a personal message (EIP-191) with the key of ADDRESS: "
    "`eth=:BASE64:` of the 65 bytes r, s and v.",
}
"""Descriptions of the headers that together sign a request (see `covey.protocol.http_signatures`)."""
EVERY_ROUTE = name_refusals(413, 422, 429, 500, 503)
"""Refusals of every route."""
SIGNED = name_refusals(401, 403)
"""Refusals of every route whose requests are signed."""
