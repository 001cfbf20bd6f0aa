"""JSON from peers: the errors of a hostile document stay small, whatever it holds."""

import json
import traceback
from typing import Annotated

import pytest
from pydantic import FailFast

from covey.errors import ProtocolError
from covey.protocol import peer_json
from covey.protocol.peer_json import PeerModel

pytestmark = pytest.mark.unit


class Item(PeerModel):
    number: int


class Document(PeerModel):
    items: Annotated[tuple[Item, ...], FailFast()]


def parse(data: bytes) -> Document:
    return peer_json.parse(Document, data, name="document", code="bad_document", max_bytes=1 << 20)


def test_parse__valid_document():
    assert parse(b'{"items": [{"number": 1}]}') == Document(items=(Item(number=1),))


def test_parse__too_large__is_refused_before_parsing():
    with pytest.raises(ProtocolError, match="bad_document: the document exceeds 1048576 bytes") as caught:
        parse(b"{" * ((1 << 20) + 1))
    assert caught.value.status == 502


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (json.dumps({"items": [{}] * 100_000}), r"1 validation error for Document\nitems\.0\.number"),
        (json.dumps({"items": [{"number": "x" * 500_000}]}), "1 validation error"),
        (json.dumps({"items": [], "x" * 500_000: 1}), "1 validation error for Document\nxxx"),
        (json.dumps({"items": [], **dict.fromkeys(map(str, range(50_000)), 1)}), "50000 errors$"),
        (json.dumps({"items": [], **dict.fromkeys("abcdefgh", 1)}), "8 validation errors"),
    ],
)
def test_parse__many_or_long_errors__have_a_short_message(data: str, message: str):
    with pytest.raises(ProtocolError, match=f"bad_document: the document is invalid: {message}") as caught:
        parse(data.encode())
    assert len("".join(traceback.format_exception(caught.value))) < 3000


def test_peer_model__is_strict_and_frozen():
    with pytest.raises(ProtocolError, match="bad_document"):
        parse(b'{"items": [{"number": "1"}]}')
    with pytest.raises(ValueError, match="frozen"):
        Item(number=1).number = 2
