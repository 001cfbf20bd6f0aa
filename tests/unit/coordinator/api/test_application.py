import json

import pytest

from coordinator.api import admission
from coordinator.api.application import build_routes
from covey.protocol import http_signatures
from covey.protocol.ids import Address

pytestmark = pytest.mark.unit


class Key:
    address = Address("0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266")

    def sign_digest(self, digest: bytes) -> bytes:
        return bytes(65)


def test_openapi__signed_routes__are_those_that_admission_checks():
    document = build_routes().openapi()
    signed = {
        (method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "security" in operation
    }
    checked = {
        ("post", path)
        for path, methods in document["paths"].items()
        if "post" in methods and path.split("/")[2] in admission._ROLES
    }
    assert signed == checked
    assert len(signed) == 17
    assert {method for path in document["paths"].values() for method in path} == {"get", "put", "post"}


def test_openapi__schemes__are_the_headers_of_a_signed_request():
    document = build_routes().openapi()
    schemes = document["components"]["securitySchemes"]
    request = http_signatures.SignedRequest(method="POST", authority="a", path="/v1/nodes", query="", body=b"")
    headers = http_signatures.sign_request(request, Key(), chain_id=1, now=0, nonce="n" * 16)
    assert {name.lower() for name in schemes} == {name.lower() for name in headers}
    assert {(scheme["type"], scheme["in"]) for scheme in schemes.values()} == {("apiKey", "header")}
    claim = document["paths"]["/v1/tasks/claim"]["post"]
    assert claim["security"] == [{name: [] for name in schemes}], "all three, not one of them"


def test_routes__no_page__loads_anything_from_another_server():
    api = build_routes()
    assert (api.docs_url, api.redoc_url) == (None, None)
    assert "cdn" not in json.dumps(api.openapi())
