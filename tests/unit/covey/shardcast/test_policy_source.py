"""Statements of relays that a client believes or refuses."""

import pytest

from covey.errors import ProtocolError, TransientError
from covey.protocol.head import Head
from covey.protocol.ids import ZERO_HASH, Hash
from covey.shardcast import source
from covey.shardcast.policy_source import Claim
from tests.fakes.policy_relays import FakeRelay, OfferedPolicies, build_client, close_client, flip_bit

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("_LONGEST_REST_SECONDS", "_LONGEST_LIE_REST_SECONDS"):
        monkeypatch.setattr(source, name, 0.001)


@pytest.fixture
def policies(tmp_path):
    offered = OfferedPolicies(tmp_path / "trainer", sizes={"w": 20_000})
    offered.offer(), offered.offer()
    return offered


@pytest.fixture
def relay(policies):
    with FakeRelay(policies.store) as started:
        yield started


@pytest.fixture
def policy_source(tmp_path, relay):
    client = build_client(tmp_path / "policies", relay.url)
    yield client.source
    client.source.downloader.close()


def find_ways(policies, step):
    return next(each.ways for each in policies.head().policies if each.step == step)


def test_find_route__claims_name_the_policy_that_each_way_leads_to(policies, policy_source):
    first, second = policies.hash_of(0), policies.hash_of(1)
    (anchor,), (delta,) = find_ways(policies, 0), find_ways(policies, 1)
    route = policy_source.find_route(second, frozenset())
    assert route.claims == (Claim(first, anchor), Claim(second, delta))
    assert route.source is policy_source.downloader.sources[0]
    assert policy_source.find_route(second, {first}).claims == (Claim(second, delta),)
    assert policy_source.find_route(second, {second}).claims == ()


def test_find_route__avoided_and_refused_claims_are_left_out(policies, policy_source):
    first, second = policies.hash_of(0), policies.hash_of(1)
    claim = Claim(second, find_ways(policies, 1)[0])
    with pytest.raises(TransientError) as caught:
        policy_source.find_route(second, frozenset(), avoided={claim})
    assert caught.value.code == "not_at_relays"
    route = policy_source.find_route(second, frozenset())
    policy_source.refuse([Claim(first, claim.way)], route.source, "it is false")
    assert policy_source.find_route(second, frozenset()).claims == route.claims
    policy_source.refuse([claim], route.source, "it is false")
    with pytest.raises(TransientError, match="knows no route to the policy"):
        policy_source.find_route(second, frozenset())
    assert route.source.success == 0.0


def test_fetch_record__is_remembered__up_to_a_number(policies, policy_source, relay):
    for _ in range(3):
        assert policy_source.fetch_record(policies.hash_of(0)) == policies.exports[0].record
    assert len(relay.paths) == 1
    for _ in range(16):
        policies.offer()
        policy_source.fetch_record(policies.hash_of(len(policies.exports) - 1))
    policy_source.fetch_record(policies.hash_of(0))
    assert len(relay.paths) == 18


def test_fetch_manifest__must_be_what_the_claim_says(policies, policy_source):
    first, second, other = policies.hash_of(0), policies.hash_of(1), Hash("0x" + "12" * 32)
    (anchor,), (delta,) = find_ways(policies, 0), find_ways(policies, 1)
    manifest = policy_source.fetch_manifest(Claim(second, delta))
    assert (manifest.address, manifest.base, manifest.size) == (delta.manifest, first, delta.size)
    for claim in (
        Claim(first, delta),
        Claim(second, delta.model_copy(update={"size": delta.size + 1})),
        Claim(second, delta.model_copy(update={"base": other})),
        Claim(second, delta.model_copy(update={"base": ZERO_HASH})),
        Claim(first, anchor.model_copy(update={"base": other})),
        Claim(second, anchor),
    ):
        with pytest.raises(ProtocolError, match="does not match the head") as caught:
            policy_source.fetch_manifest(claim)
        assert caught.value.code == "bad_manifest"


def test_fetch_manifest__any_flipped_bit_is_refused(policies, policy_source, relay):
    """The address of a manifest is the hash of all its bytes, including the signature."""
    way = find_ways(policies, 1)[0]
    data = policies.store.find_manifest(way.manifest)
    changed = []
    relay.alter = lambda path, body: changed[-1] if way.manifest in path else body
    for position in range(0, len(data), 7):
        changed.append(flip_bit(data, position, position % 8))
        with pytest.raises(TransientError, match="do not have the hash"):
            policy_source.fetch_manifest(Claim(policies.hash_of(1), way))


def test_find_route__fewest_bytes_of_several_relays__but_a_doubted_one_only_without_others(tmp_path, policies, relay):
    first, second = policies.hash_of(0), policies.hash_of(1)
    (delta,) = find_ways(policies, 1)
    false = delta.model_copy(update={"size": 1})
    newest, oldest = policies.head().policies
    head = Head(pool=1, policies=(newest.model_copy(update={"ways": (false,)}), oldest)).to_bytes()
    with FakeRelay(policies.store, lambda path, body: head if "heads" in path else body) as liar:
        client = build_client(tmp_path / "others", relay.url, liar.url)
        honest, lying = client.source.downloader.sources
        for _ in range(3):
            route = client.source.find_route(second, {first})
            assert (route.source, route.claims, route.size) == (lying, (Claim(second, false),), 1)
            route = client.source.find_route(second, {first}, doubted={lying})
            assert (route.source, route.claims, route.size) == (honest, (Claim(second, delta),), delta.size)
            assert client.source.find_route(second, {first}, doubted={honest, lying}).source is lying
        client.source.refuse([Claim(second, false)], lying, "it is false")
        assert (lying.success, honest.success > 0.5) == (0.0, True)
        assert client.source.find_route(second, {first}).source is honest
        close_client(client)
