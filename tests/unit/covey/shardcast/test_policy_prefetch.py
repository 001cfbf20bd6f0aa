"""A machine without a policy prefetches an export from relays, whose previews may be false."""

import threading
from contextlib import ExitStack

import pytest

from covey.errors import TransientError
from covey.protocol.ids import Hash
from covey.protocol.pieces import Piece, compute_blake3
from covey.protocol.preview import PreviewRow, parse_preview
from covey.protocol.transport import TransportManifest
from covey.shardcast import policy_prefetch
from covey.shardcast.export_preview import PreviewFolder
from tests.fakes.policy_relays import FakeRelay, OfferedPolicies, build_client, close_client, flip_bit, wait_patiently

pytestmark = pytest.mark.integration
WEIGHTS = 5
"""Number of pieces of a policy's weights. The piece of its configuration follows."""
GO_ON = threading.Event()
"""Stop event that is never set."""


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    wait_patiently(monkeypatch)


@pytest.fixture
def policies(tmp_path):
    return OfferedPolicies(tmp_path / "trainer")


@pytest.fixture
def connect(tmp_path, policies):
    """Return a function that starts a relay, and returns the relay and a client."""
    with ExitStack() as stack:

        def start(alter=None):
            relay = stack.enter_context(FakeRelay(policies.store, alter))
            client = build_client(tmp_path / "client", relay.url)
            stack.callback(close_client, client)
            return relay, client

        yield start


def fetch(client, policies, step=0):
    return client.fetch(step, policies.hash_of(step))


def list_free(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".part")]


def test_prefetch__pieces_of_the_export__are_not_fetched_again(policies, connect):
    relay, client = connect()
    assert not client.prefetch(GO_ON), "nothing is exported yet"
    found = []
    policies.offer(is_previewed=True, before_offer=lambda: found.append(client.prefetch(GO_ON)))
    assert found == [True]
    prefetched, weights = relay.count_pieces(), policies.head().policies[0]
    assert prefetched == WEIGHTS
    policies.require_same(fetch(client, policies), 0)
    assert relay.count_pieces() == prefetched + 1, "only config.json is left"
    assert not client.prefetch(GO_ON), "a policy is here"
    assert weights.step == 0
    assert list_free(client.store.root) == []


def test_prefetch__growing_preview__only_new_pieces_are_fetched(policies, connect):
    rows = 0

    def alter(path, body):
        return body and body[: 44 * rows] if path.startswith("/previews") else body

    relay, client = connect(alter)

    def prefetch():
        nonlocal rows
        for rows in (1, 3, 2, WEIGHTS):
            assert client.prefetch(GO_ON) == (rows != 2)
        assert relay.count_pieces() == WEIGHTS

    policies.offer(is_previewed=True, before_offer=prefetch)
    policies.require_same(fetch(client, policies), 0)
    assert relay.count_pieces() == WEIGHTS + 1


def test_prefetch__pieces_that_no_manifest_names__are_dropped(policies, connect):
    """The relay previews real pieces at wrong offsets, so the file would be wrong."""

    def alter(path, body):
        if body is None or not path.startswith("/previews"):
            return body
        first, *rest = parse_preview(body)
        return b"".join(PreviewRow(row.piece, row.offset + 8).to_bytes() for row in (first, *rest))

    relay, client = connect(alter)
    policies.offer(is_previewed=True, before_offer=lambda: client.prefetch(GO_ON))
    before = relay.count_pieces()
    policies.require_same(fetch(client, policies), 0)
    assert relay.count_pieces() == before + WEIGHTS + 1


def test_prefetch__some_pieces_are_rubbish__only_these_are_fetched_again(policies, connect):
    rubbish = b"xyz"

    def alter(path, body):
        if path == f"/pieces/{compute_blake3(rubbish)}":
            return rubbish
        if body is None or not path.startswith("/previews"):
            return body
        first, *rest = parse_preview(body)
        false = PreviewRow(Piece(len(rubbish), compute_blake3(rubbish)), first.offset)
        return b"".join(row.to_bytes() for row in (false, *rest))

    relay, client = connect(alter)
    policies.offer(is_previewed=True, before_offer=lambda: client.prefetch(GO_ON))
    before = relay.count_pieces()
    assert before == WEIGHTS
    policies.require_same(fetch(client, policies), 0)
    assert relay.count_pieces() == before + 2, "the piece at the place of the rubbish, and config.json"


def test_prefetch__wrong_bytes__are_not_kept(policies, connect):
    def alter(path, body):
        return flip_bit(body, 0) if body and path.startswith("/pieces") and not policies.exports else body

    relay, client = connect(alter)
    found = []
    policies.offer(is_previewed=True, before_offer=lambda: found.append(client.prefetch(GO_ON)))
    assert found == [False]
    before = relay.count_pieces()
    policies.require_same(fetch(client, policies), 0)
    assert relay.count_pieces() == before + WEIGHTS + 1


def test_prefetch__preview_of_another_export__replaces_what_is_held(policies, connect, tmp_path):
    relay, client = connect()
    policies.offer(is_previewed=True, before_offer=lambda: client.prefetch(GO_ON))
    other = OfferedPolicies(tmp_path / "other")
    other.tensors["b.weight"] += 1
    relay.store = other.store
    relay.previews = PreviewFolder(other.store.root)
    other.offer(is_previewed=True, before_offer=lambda: client.prefetch(GO_ON))
    before = relay.count_pieces()
    other.require_same(fetch(client, other), 0)
    assert relay.count_pieces() == before + 1


def test_prefetch__bytes_are_bounded__until_a_policy_is_obtained(policies, connect, monkeypatch):
    monkeypatch.setattr(policy_prefetch, "MAX_PREFETCHED_BYTES", 5 << 20)
    number = 0

    def alter(path, body):
        if path.startswith("/previews"):
            data = bytes([number]) * (1 << 20)
            return PreviewRow(Piece(len(data), compute_blake3(data)), 0).to_bytes()
        if path.startswith("/pieces"):
            return bytes([number]) * (1 << 20)
        return body

    relay, client = connect(alter)
    results = []
    for number in range(1, 9):  # noqa: B007
        results.append(client.prefetch(GO_ON))
    assert results == [True] * 5 + [False] * 3
    assert relay.count_pieces() == 5


@pytest.mark.parametrize("data", [b"x", bytes(44), b"\xff" * 44])
def test_prefetch__hostile_preview__fetches_nothing(policies, connect, data):
    relay, client = connect(lambda path, body: data if path.startswith("/previews") else body)
    assert not client.prefetch(GO_ON)
    assert relay.count_pieces() == 0


def test_prefetch__little_room__half_of_the_disk_stays_free(policies, connect, monkeypatch):
    relay, client = connect()
    monkeypatch.setattr(client.store, "count_free", lambda: 2 * 4_199_999)
    policies.offer(is_previewed=True, before_offer=lambda: client.prefetch(GO_ON))
    (way,) = policies.head().policies[0].ways
    manifest = TransportManifest.from_bytes(policies.store.find_manifest(way.manifest), way.manifest)
    sizes = {piece.digest: piece.size for piece in manifest.pieces}
    fetched = [sizes[path.removeprefix("/pieces/")] for path in relay.paths if path.startswith("/pieces/")]
    assert 0 < sum(fetched) <= 4_199_999


def test_prefetch__file_system_without_unnamed_files__does_nothing(policies, connect, monkeypatch):
    _, client = connect()

    def fail(*_):
        raise OSError(95, "Operation not supported")

    found = []

    def prefetch():
        with monkeypatch.context() as patch:
            patch.setattr(policy_prefetch.os, "open", fail)
            found.append(client.prefetch(GO_ON))

    policies.offer(is_previewed=True, before_offer=prefetch)
    assert found == [False]
    policies.require_same(fetch(client, policies), 0)


def test_prefetch__stop__ends_it(policies, connect):
    stop = threading.Event()

    def alter(path, body):
        if path.startswith("/pieces"):
            stop.set()
            relay.is_closed.wait()
        return body

    def prefetch():
        with pytest.raises(TransientError, match="stopped"):
            client.prefetch(stop)

    relay, client = connect(alter)
    policies.offer(is_previewed=True, before_offer=prefetch)


def test_prefetch__a_draft_is_here__it_is_continued_instead(policies, connect):
    relay, client = connect()
    policies.offer(is_previewed=True, before_offer=lambda: client.prefetch(GO_ON))
    draft = client.store.get_draft(Hash(policies.hash_of(0)))
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"")
    before = relay.count_pieces()
    policies.require_same(fetch(client, policies), 0)
    assert relay.count_pieces() == before + WEIGHTS + 1
