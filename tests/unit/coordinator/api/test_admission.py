"""What is checked before a request reaches a route, and in which order. Nothing here touches a database."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.api import admission
from coordinator.api.admission import SIGNER, Admission
from coordinator.api.process.members import Members
from coordinator.api.process.meters import Meters
from coordinator.api.process.nonces import MemoryNonces
from covey.chain.wallet import wallet_from_key
from covey.protocol.http_signatures import SignedRequest, sign_request

pytestmark = pytest.mark.unit
NODE, STRANGER, VALIDATOR, TRAINER, OPERATOR = (wallet_from_key(bytes([number]) * 32) for number in range(1, 6))
NOW, CHAIN, AUTHORITY = 1_700_000_000, 31337, "127.0.0.1:8000"
BODY = b'{"free_slots":1}'


class Peer:
    """Sends one request to an application, piece by piece, and counts the pieces that it was asked for."""

    def __init__(
        self, path: str, *pieces: bytes, headers: dict[str, str], method: str = "POST", query: str = ""
    ) -> None:
        self.pieces, self.taken = list(pieces or (b"",)), 0
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("10.0.0.1", 1),
        }
        self.answers: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        if not self.pieces:
            return {"type": "http.disconnect"}
        self.taken += 1
        return {"type": "http.request", "body": self.pieces.pop(0), "more_body": bool(self.pieces)}

    async def send(self, message: Any) -> None:
        self.answers.append(message)

    @property
    def code(self) -> str:
        """Code of the refusal. Empty if the request was admitted."""
        return str(json.loads(self.answers[1]["body"])["code"]) if self.answers else ""


class Gate:
    """An `Admission` before an application that reads every body."""

    def __init__(self, *, requests_per_s: float = 100.0) -> None:
        self.now, self.admitted = float(NOW), list[tuple[str | None, bytes]]()
        self.looked_up: list[str] = []
        chain = SimpleNamespace(active_validators=frozenset([VALIDATOR.address]), bonds={})
        self.members = Members(self, chain, pool=1, trainer=TRAINER.address, operators=(OPERATOR.address,))  # type: ignore[arg-type]
        self.members.add_node(NODE.address)
        self.admission = Admission(
            self.run,
            members=self.members,
            nonces=MemoryNonces(NOW - 100),
            meters=Meters(),
            authority=AUTHORITY,
            chain_id=CHAIN,
            max_body=100,
            max_upload=1000,
            requests_per_s=requests_per_s,
            clock=lambda: self.now,
        )

    async def query(self, work: Any) -> Any:
        """Stand for the database, in which there is no node."""
        self.looked_up.append("node")
        return work(SimpleNamespace(has_node=lambda address: False))

    async def run(self, scope: Any, receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body, has_more = body + message["body"], message["more_body"]
        self.admitted.append((scope.get(SIGNER), body))

    async def ask(self, peer: Peer) -> str:
        await self.admission(peer.scope, peer.receive, peer.send)
        return peer.code


def sign(path: str = "/v1/heartbeat", body: bytes = BODY, *, key: Any = NODE, nonce: str = "n" * 16) -> dict[str, str]:
    request = SignedRequest(method="POST", authority=AUTHORITY, path=path, query="", body=body)
    return sign_request(request, key, chain_id=CHAIN, now=NOW, nonce=nonce)


async def test_admission__signed_by_a_node__reaches_the_route_with_body_and_signer():
    gate = Gate()
    assert await gate.ask(Peer("/v1/heartbeat", BODY[:5], BODY[5:], headers=sign())) == ""
    assert gate.admitted == [(NODE.address, BODY)]


@pytest.mark.parametrize(
    ("path", "key", "code"),
    [
        ("/v1/heartbeat", STRANGER, "unknown_node"),
        ("/v1/submissions", VALIDATOR, "unknown_node"),
        ("/v1/validations/claim", NODE, "not_a_validator"),
        ("/v1/validations/claim", VALIDATOR, ""),
        ("/v1/batches/claim", VALIDATOR, "not_the_trainer"),
        ("/v1/batches/claim", TRAINER, ""),
        ("/v1/batches/claim", OPERATOR, "not_the_trainer"),
        ("/v1/learning", TRAINER, ""),
        ("/v1/learning", OPERATOR, "not_the_trainer"),
        ("/v1/pause", OPERATOR, ""),
        ("/v1/pause", TRAINER, "not_the_operator"),
        ("/v1/pause", NODE, "not_the_operator"),
        ("/v1/pause", STRANGER, "not_the_operator"),
        ("/v1/pardons", OPERATOR, ""),
        ("/v1/pardons", TRAINER, "not_the_operator"),
        ("/v1/pardons", NODE, "not_the_operator"),
        ("/v1/nodes", STRANGER, ""),
    ],
)
async def test_admission__role__is_that_of_the_path(path: str, key: Any, code: str):
    peer = Peer(path, BODY, headers=sign(path, key=key))
    assert await Gate().ask(peer) == code
    assert peer.taken == (0 if code else 1), "a refused body is not read"


async def test_admission__forged_unsigned_or_replayed__is_refused_before_the_body_is_read():
    gate = Gate()
    assert await gate.ask(Peer("/v1/heartbeat", BODY, headers=sign())) == ""
    forged = sign(nonce="m" * 16) | {"signature": sign(nonce="o" * 16)["signature"]}
    for headers, code in (({}, "unsigned"), (forged, "bad_signature"), (sign(), "replayed_nonce")):
        peer = Peer("/v1/heartbeat", BODY, headers=headers)
        assert (await gate.ask(peer), peer.taken) == (code, 0)
    assert len(gate.admitted) == 1


async def test_admission__body_is_another_one__is_refused_and_its_nonce_can_be_used():
    gate = Gate()
    assert await gate.ask(Peer("/v1/heartbeat", b"{}", headers=sign())) == "digest_mismatch"
    assert await gate.ask(Peer("/v1/heartbeat", BODY, headers=sign())) == ""


@pytest.mark.parametrize(
    ("headers", "pieces", "taken"),
    [
        ({"content-length": "101"}, [b"x" * 101], 0),
        ({"content-length": "-1"}, [b""], 0),
        ({}, [b"x" * 60, b"x" * 60, b"x" * 60], 2),
    ],
    ids=["declared", "not_a_number", "in_pieces"],
)
async def test_admission__body_is_too_large__is_read_no_further(
    headers: dict[str, str], pieces: Sequence[bytes], taken: int
):
    peer = Peer("/v1/heartbeat", *pieces, headers=sign() | headers)
    assert (await Gate().ask(peer), peer.taken) == ("oversized", taken)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are of a moment, however slow this machine is."""
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: 7.0))


@pytest.mark.usefixtures("stopped_clock")
async def test_admission__flood_of_unsigned_requests__leaves_known_keys_alone():
    gate = Gate(requests_per_s=5)
    codes = [await gate.ask(Peer("/v1/heartbeat", BODY, headers={})) for _ in range(40)]
    assert codes.count("unsigned") == 20, "four seconds' worth at once"
    assert codes.count("rate_limited") == 20
    assert await gate.ask(Peer("/v1/heartbeat", BODY, headers=sign())) == ""


async def test_admission__flood_of_an_unknown_key__looks_no_more_often_than_the_rate_allows():
    gate = Gate(requests_per_s=5)
    headers = [sign(key=STRANGER, nonce=f"{number:016}") for number in range(40)]
    codes = [await gate.ask(Peer("/v1/heartbeat", BODY, headers=each)) for each in headers]
    assert (codes.count("unknown_node"), codes.count("rate_limited")) == (20, 20)
    assert len(gate.looked_up) == 20


async def test_admission__one_key_asks_too_often__is_refused_and_others_are_not():
    gate = Gate(requests_per_s=5)
    headers = [sign(nonce=f"{number:016}") for number in range(30)]
    codes = [await gate.ask(Peer("/v1/heartbeat", BODY, headers=each)) for each in headers]
    assert (codes.count(""), codes.count("rate_limited")) == (20, 10)
    path = "/v1/validations/claim"
    assert await gate.ask(Peer(path, BODY, headers=sign(path, key=VALIDATOR))) == ""


async def test_admission__get__needs_no_signature():
    gate = Gate()
    assert await gate.ask(Peer("/v1/status", headers={}, method="GET")) == ""
    assert gate.admitted == [(None, b"")]


@pytest.mark.usefixtures("stopped_clock")
async def test_admission__forged_requests_in_the_name_of_a_node__cost_the_node_nothing():
    gate = Gate(requests_per_s=5)
    forged = [sign(nonce=f"{number:016}") | {"signature": sign(nonce="o" * 16)["signature"]} for number in range(250)]
    codes = [await gate.ask(Peer("/v1/heartbeat", BODY, headers=each)) for each in forged]
    assert (codes.count("bad_signature"), codes.count("rate_limited")) == (20, 230)
    victim = Peer("/v1/heartbeat", BODY, headers=sign())
    victim.scope["client"] = ("10.0.0.2", 1)
    assert await gate.ask(victim) == ""
