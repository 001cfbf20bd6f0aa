"""Requests to the ASGI application of an origin, without a server."""

import json
import os

import pytest
from structlog.testing import capture_logs

from covey.protocol.head import Head
from covey.protocol.ids import Hash
from covey.protocol.pieces import compute_blake3
from covey.protocol.policy_record import PolicyRecord
from covey.protocol.transport import TransportManifest
from covey.runtime.rate_limit import RateLimits
from covey.shardcast.origin import OriginSource
from covey.shardcast.origin_store import OriginStore
from covey.shardcast.piece_server import PieceServer, compute_etag
from tests.fakes.asgi import ask
from tests.fakes.exposition import read_metrics
from tests.fakes.served_policies import Publisher, flip

pytestmark = pytest.mark.unit
UNKNOWN = "0x" + "ab" * 32


@pytest.fixture
def publisher(tmp_path):
    return Publisher(OriginStore(tmp_path / "origin"), tmp_path)


@pytest.fixture
def app(publisher):
    return PieceServer(OriginSource(OriginStore(publisher.store.root)))


async def test_policy__all_its_parts__are_served(publisher, app):
    made = publisher.add_anchor(1, sizes=(5 << 20, 1000))
    head = Head.from_bytes((await ask(app, "/heads/1.json")).body)
    (policy,) = head.policies
    record = await ask(app, f"/records/{policy.record}")
    assert PolicyRecord.from_bytes(record.body, policy.record) == made.record
    answered = await ask(app, f"/manifests/{policy.ways[0].manifest}")
    manifest = TransportManifest.from_bytes(answered.body, policy.ways[0].manifest)
    assert "immutable" in answered.headers["cache-control"]
    for piece in manifest.pieces:
        answered = await ask(app, f"/pieces/{piece.digest}")
        assert answered.status == 200
        assert answered.headers["content-length"] == str(piece.size)
        assert answered.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert compute_blake3(answered.body) == piece.digest
    assert app.metrics.pieces == 4


async def test_data_set__manifest_and_pieces__are_served(publisher, app):
    made = publisher.add_dataset(1, size=(2 << 20) + 7)
    answered = await ask(app, f"/manifests/{made.digest}")
    assert answered.body == made.to_bytes()
    assert "immutable" in answered.headers["cache-control"]
    bodies = [(await ask(app, f"/pieces/{piece.digest}")).body for piece in made.files[0].pieces]
    assert b"".join(bodies) == (publisher.scratch / "rows-1").read_bytes()


async def test_health__is_ok(app):
    assert json.loads((await ask(app, "/health")).body) == {"status": "ok"}


async def test_head__has_an_etag__and_304_until_it_changes(publisher, app):
    publisher.add_anchor(1)
    first = await ask(app, "/heads/1.json")
    assert first.headers["cache-control"] == "no-cache"
    tag = first.headers["etag"]
    assert tag == compute_etag(first.body)
    again = await ask(app, "/heads/1.json", headers=[("if-none-match", tag)])
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    publisher.add_anchor(2)
    assert (await ask(app, "/heads/1.json", headers=[("if-none-match", tag)])).status == 200


@pytest.mark.parametrize(
    "path",
    [
        f"/pieces/{UNKNOWN}",
        f"/manifests/{UNKNOWN}",
        f"/records/{UNKNOWN}",
        "/heads/7.json",
        "/heads/0.json",
        "/heads/-1.json",
        "/heads/1" + "0" * 30 + ".json",
        "/heads/../heads/1.json",
        "/pieces/../heads/1.json",
        "/pieces/..%2fheads%2f1.json",
        f"/pieces/{UNKNOWN}/../x",
        f"/pieces/{UNKNOWN.upper()}",
        f"/pieces/{UNKNOWN}\n",
        f"/pieces/{UNKNOWN}.json",
        f"/pieces/{UNKNOWN}/",
        "/pieces/0x" + "0" * 5000,
        "/pieces/secret\x00",
        "/pieces/．．／secret",
        "/heads/٣.json",
        "/heads/1.json\n",
        "/heads/" + "9" * 5000 + ".json",
        "/secret",
        "/manifests/../../../etc/passwd",
        "//etc/passwd",
        "/objects/x/weights",
        "/",
        "",
    ],
)
async def test_unknown_paths_and_traversal__are_not_found(publisher, app, path):
    publisher.add_anchor(1)
    answered = await ask(app, path)
    assert answered.status == 404
    assert json.loads(answered.body)["code"] == "not_found"


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE"])
async def test_other_methods__are_refused(app, method):
    answered = await ask(app, "/health", method=method)
    assert (answered.status, answered.headers["allow"]) == (405, "GET")


async def test_damaged_piece__is_answered_with_503(publisher, app):
    made = publisher.add_anchor(1)
    path = publisher.store.root / "objects" / made.anchor.address / "weights"
    digest = made.anchor.objects[0].pieces[0].digest
    assert (await ask(app, f"/pieces/{digest}")).status == 200
    flip(path)
    answered = await ask(app, f"/pieces/{digest}")
    assert (answered.status, json.loads(answered.body)["code"]) == (503, "damaged")


@pytest.mark.parametrize("kind", ["manifests", "records"])
async def test_damaged_document__is_answered_with_503(publisher, app, kind):
    made = publisher.add_anchor(1)
    name = made.anchor.address if kind == "manifests" else made.record.compute_hash()
    (path,) = (publisher.store.root / kind).iterdir()
    flip(path, 40)
    answered = await ask(app, f"/{kind}/{name}")
    assert (answered.status, json.loads(answered.body)["code"]) == (503, "damaged")


async def test_damaged_head__is_an_error_and_no_traceback(publisher, app):
    publisher.add_anchor(1)
    (publisher.store.root / "heads" / "1.json").write_bytes(b"{")
    answered = await ask(app, "/heads/1.json")
    assert (answered.status, json.loads(answered.body)["code"]) == (503, "damaged")
    assert (await ask(app, "/status")).status == 200


async def test_rate_limit__is_by_client_and_verification_costs_more(publisher):
    now = 0.0
    app = PieceServer(OriginSource(publisher.store), RateLimits(requests_per_s=1, burst=3), clock=lambda: now)
    digest = publisher.add_anchor(1).anchor.objects[0].pieces[0].digest
    assert [(await ask(app, "/health")).status for _ in range(4)] == [200, 200, 200, 429]
    answered = await ask(app, "/health")
    assert answered.headers["retry-after"] == "2"
    assert json.loads(answered.body)["code"] == "rate_limited"
    assert (await ask(app, f"/pieces/{digest}?verify=1", client="10.0.0.2")).status == 200
    now = 17.0
    assert (await ask(app, "/health", client="10.0.0.2")).status == 429
    now = 18.0
    assert (await ask(app, "/health", client="10.0.0.2")).status == 200


async def test_byte_limit__refuses_the_next_piece(publisher):
    app = PieceServer(OriginSource(publisher.store), RateLimits(bytes_per_s=100), clock=lambda: 0.0)
    digest = publisher.add_anchor(1).anchor.objects[0].pieces[0].digest
    assert [(await ask(app, f"/pieces/{digest}")).status for _ in range(2)] == [200, 429]


async def test_piece__peer_has_gone__is_not_counted_as_sent_and_the_file_is_closed(publisher, app):
    made = publisher.add_anchor(1)

    async def send_file(part):
        return False

    before = os.listdir("/proc/self/fd")
    await ask(app, f"/pieces/{made.anchor.objects[0].pieces[0].digest}", send_file=send_file)
    assert os.listdir("/proc/self/fd") == before
    assert (app.metrics.pieces, app.metrics.succeeded, app.metrics.failed) == (0, 0, 1)


async def test_piece__disk_fails_in_the_middle__is_logged_and_no_second_response_begins(publisher, app):
    made = publisher.add_anchor(1)

    async def send_file(part):
        raise OSError(5, "Input/output error")

    with capture_logs() as logs:
        answered = await ask(app, f"/pieces/{made.anchor.objects[0].pieces[0].digest}", send_file=send_file)
    assert (answered.status, answered.body) == (200, b"")
    assert [each["event"] for each in logs] == ["cannot read a piece"]
    assert app.metrics.failed == 1


async def test_unreadable_file__is_answered_with_503(publisher, app, monkeypatch):
    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    made = publisher.add_anchor(1)
    monkeypatch.setattr("covey.shardcast.piece_files.os.pread", fail)
    answered = await ask(app, f"/pieces/{made.anchor.objects[0].pieces[0].digest}")
    assert (answered.status, json.loads(answered.body)["code"]) == (503, "unavailable")


async def test_status__tells_operators_what_is_here(publisher, app):
    made = publisher.add_anchor(4)
    await ask(app, f"/pieces/{made.anchor.objects[0].pieces[0].digest}")
    status = json.loads((await ask(app, "/status")).body)
    assert status["role"] == "origin"
    assert (status["pieces"], status["pieces_sent"], status["bytes_sent"]) == (2, 1, 1300)
    assert status["newest_steps"] == {"1": 4}


async def test_metrics__requests_by_outcome_and_what_was_sent(publisher):
    now = 0.0
    app = PieceServer(OriginSource(publisher.store), RateLimits(requests_per_s=1, burst=20), clock=lambda: now)
    made = publisher.add_anchor(1)
    digests = [piece.digest for piece in made.anchor.pieces]
    answered = [await ask(app, path) for path in ("/health", f"/pieces/{digests[0]}", "/heads/1.json")]
    tag = [("if-none-match", answered[-1].headers["etag"])]
    assert (await ask(app, "/heads/1.json", headers=tag)).status == 304
    assert (await ask(app, f"/pieces/{UNKNOWN}")).status == 404
    assert (await ask(app, "/health", method="POST")).status == 405
    flip(publisher.store.root / "objects" / made.anchor.address / "config.json")
    assert (await ask(app, f"/pieces/{digests[1]}")).status == 503
    statuses = [(await ask(app, "/health")).status for _ in range(16)]
    assert statuses == [200] * 14 + [429] * 2
    now = 100.0
    metrics = await ask(app, "/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = read_metrics(metrics.body)
    outcomes = {outcome: value for (name, outcome), value in values.items() if name == "covey_requests_total"}
    assert outcomes == {"ok": 4 + 14, "refused": 1 + 2, "missing": 1, "failed": 1}
    assert values["covey_sent_pieces_total", None] == 1
    sent = sum(len(each.body) for each in answered) + 14 * len(answered[0].body)
    assert values["covey_sent_bytes_total", None] == sent


async def test_origin_source__unknown_hash__is_not_found(app):
    assert (await ask(app, f"/manifests/{Hash(UNKNOWN)}")).status == 404
