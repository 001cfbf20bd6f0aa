"""The union of the upstreams' heads, in which no upstream displaces the policies of another one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.protocol.head import MAX_HEAD_BYTES, MAX_POLICIES, Head, ServedPolicy, Way
from covey.protocol.ids import ZERO_HASH
from covey.shardcast.pool_heads import RESTORED, FetchedHead, PoolHeads, merge_heads

pytestmark = pytest.mark.unit


def name(number):
    return f"0x{number:064x}"


def serve(step, *ways, record=None):
    """Return a policy whose ways have these numbers."""
    served = tuple(Way(manifest=name(number), size=number) for number in ways)
    return ServedPolicy(step=step, record=name(step if record is None else record), ways=served)


def encode(*policies):
    return Head(pool=1, policies=policies).to_bytes()


def merge(*heads):
    return Head.from_bytes(merge_heads(1, heads))


def test_merge__equal_heads__stay_as_they_are():
    data = b" " + encode(serve(1, 7))
    assert merge_heads(1, [data] * 3) == data


def test_merge__stale_head__adds_nothing_and_removes_nothing():
    new, stale = encode(serve(3, 31, 32), serve(2, 21)), encode(serve(2, 21), serve(1, 11))
    for heads in ((new, stale), (stale, new)):
        assert merge(*heads).policies == (serve(3, 31, 32), serve(2, 21), serve(1, 11))


def test_merge__false_claims_about_a_true_record__do_not_replace_true_ones():
    true = serve(5, 1, 2)
    false_ways = serve(5, *range(100, 164))
    false_step, false_base = serve(6, 1, 2, record=5), true.ways[0].model_copy(update={"base": name(8), "size": 0})
    lying = encode(false_ways, false_step, serve(5).model_copy(update={"ways": (false_base,)}))
    for heads in ((encode(true), lying), (lying, encode(true))):
        merged = merge(*heads).policies
        assert [(policy.step, policy.record) for policy in merged] == [(6, name(5)), (5, name(5))]
        assert {*true.ways, false_base} <= set(merged[1].ways)
        assert len(merged[1].ways) == 64


def test_merge__head_full_of_invented_steps__leaves_the_other_its_half():
    ways = [Way(manifest=name(number), base=ZERO_HASH, size=1 << 40) for number in range(64)]
    invented = [ServedPolicy(step=1 << 40, record=name(number), ways=tuple(ways)) for number in range(350)]
    lying, true = encode(*invented), [serve(step, step) for step in range(5000, 0, -1)]
    assert len(lying) > MAX_HEAD_BYTES * 0.9
    assert MAX_HEAD_BYTES * 0.2 < len(encode(*true)) < MAX_HEAD_BYTES / 2
    for heads in ((encode(*true), lying), (lying, encode(*true))):
        merged = merge_heads(1, heads)
        assert len(merged) <= MAX_HEAD_BYTES
        assert set(true) <= set(Head.from_bytes(merged).policies)


def test_merge__too_many_small_policies__newest_of_each_head_stay():
    heads = [[serve(step, record=10_000 * number + step) for step in range(8000, 0, -1)] for number in (1, 2)]
    merged = merge(*(encode(*policies) for policies in heads)).policies
    assert len(merged) == MAX_POLICIES
    for policies in heads:
        assert set(policies[: MAX_POLICIES // 2]) <= set(merged)


policies = st.lists(
    st.builds(lambda step, record, ways: serve(step, *ways, record=record), st.integers(0, 5), st.integers(0, 3),
              st.lists(st.integers(1, 9), unique=True, max_size=4)),
    max_size=5,
)  # fmt: skip


@given(st.lists(policies, min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_merge__small_heads__every_claim_of_every_head_is_in_the_union_and_no_other(heads):
    def list_claims(listed):
        return {(policy.step, policy.record, way) for policy in listed for way in (None, *policy.ways)}

    merged = merge(*(encode(*policies) for policies in heads)).policies
    assert list_claims(merged) == set().union(*map(list_claims, heads))


def fetched(data):
    return FetchedHead(data, None, Head.from_bytes(data))


def test_put__tells_whether_the_head_has_changed():
    heads = PoolHeads(1)
    assert heads.put(0, fetched(encode(serve(1))), 0.0)
    heads.mirrored.add(0)
    assert not heads.put(0, fetched(encode(serve(1))), 1.0)
    assert heads.is_mirrored
    assert heads.put(0, fetched(encode(serve(2))), 2.0)
    assert not heads.is_mirrored
    assert heads.newest_step == 2


def test_forget_old__upstream_that_does_not_answer_for_an_hour__no_longer_counts():
    heads = PoolHeads(1)
    heads.put(0, fetched(encode(serve(1))), 0.0)
    heads.put(1, fetched(encode(serve(2))), 0.0)
    for now, numbers in ((3600.0, {0, 1}), (3601.0, {1})):
        heads.put(1, fetched(encode(serve(2))), now)
        heads.forget_old(3, now)
        assert heads.heads.keys() == numbers


def test_forget_old__restored_head__counts_until_all_upstreams_have_answered():
    heads = PoolHeads(1)
    heads.put(RESTORED, fetched(encode(serve(1))), 0.0)
    for number in (0, 1):
        heads.forget_old(2, 1.0)
        assert RESTORED in heads.heads
        heads.put(number, fetched(encode(serve(2))), 1.0)
    heads.forget_old(2, 1.0)
    assert heads.heads.keys() == {0, 1}
